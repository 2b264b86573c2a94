"""Selection among the nearest rows: a limit per gap, no near copies, and balanced answers."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vidqa.gaps.curation.embeddings import Table
from vidqa.gaps.curation.search import Candidates

FEW = 12  # most different answers of a slice that is balanced
Texts = Mapping[int, Mapping[str, str | None]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a selection: `per_gap`, the most rows of one gap; `max_rows`, the most rows of all gaps (0: no limit);
    `threshold`, the least similarity of a row; `duplicate_threshold`, the cosine of media from which two rows with one
    question are near duplicates; `seed`, of the order in which gaps take turns."""

    per_gap: int = 20
    max_rows: int = 0
    threshold: float = 0.5
    duplicate_threshold: float = 0.999
    seed: int = 0


@dataclass(frozen=True)
class Chosen:
    """One row of the pool, and the gap (its index among the queries) that selected it."""

    row: int
    gap: int
    similarity: float


@dataclass
class Choice:
    """The selected rows in order, and the number of rejected nearest rows by reason."""

    rows: list[Chosen] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def choose(
    candidates: Candidates, texts: Texts, classes: Mapping[int, str], limits: Limits, forbidden: frozenset[str]
) -> Choice:
    """Select rows: gaps take turns, each taking its nearest allowed row; within a slice, rows with the rarest answer so
    far come first. `classes` has the answer of labelled rows; media in `forbidden` are those of the KPI set."""
    choice, near_duplicates = Choice(), _NearDuplicates(candidates.projections, limits.duplicate_threshold)
    balance = _Balance(texts, classes)
    rows, count_of = set[int](), Counter[int]()
    waiting = [_allowed(candidates, gap, texts, limits, forbidden, choice) for gap in range(len(candidates.row))]
    turns = deque(np.random.default_rng(limits.seed).permutation(len(waiting)).tolist())
    while turns and not (limits.max_rows and len(choice.rows) >= limits.max_rows):
        gap = turns.popleft()
        best = _next(waiting[gap], rows, near_duplicates, texts, balance, choice)
        if best is None:
            continue
        rows.add(best.row)
        near_duplicates.add(best.row, texts[best.row]["question"] or "")
        balance.add(best.row)
        choice.rows.append(best)
        count_of[gap] += 1
        if count_of[gap] < limits.per_gap:
            turns.append(gap)
    return choice


def _allowed(
    candidates: Candidates, gap: int, texts: Texts, limits: Limits, forbidden: frozenset[str], choice: Choice
) -> list[Chosen]:
    allowed = []
    for row, similarity in zip(candidates.row[gap].tolist(), candidates.similarity[gap].tolist(), strict=True):
        if row < 0:
            continue
        if similarity < limits.threshold:
            choice.left_out["not similar enough"] += 1
        elif texts[row]["problem"]:
            choice.left_out["cannot be decoded"] += 1
        elif texts[row]["media"] in forbidden:
            choice.left_out["in the KPI set"] += 1
        else:
            allowed.append(Chosen(row, gap, similarity))
    return allowed


def _next(
    waiting: list[Chosen],
    rows: set[int],
    near_duplicates: _NearDuplicates,
    texts: Texts,
    balance: _Balance,
    choice: Choice,
) -> Chosen | None:
    """Pop the next allowed row from `waiting`; rows that are no longer allowed are dropped."""
    while waiting:
        best = waiting.pop(balance.rarest([chosen.row for chosen in waiting]))
        if best.row in rows:
            continue
        if near_duplicates.has(best.row, texts[best.row]["question"] or ""):
            choice.left_out["near copies"] += 1
            continue
        return best
    return None


class _Balance:
    """Counts of each answer selected in a slice (a kind or a question), for slices with few different answers."""

    def __init__(self, texts: Texts, classes: Mapping[int, str]) -> None:
        slices = {row: texts[row]["kind"] or texts[row]["question"] or "" for row in classes}
        answers: defaultdict[str, set[str]] = defaultdict(set)
        for row, name in slices.items():
            answers[name].add(classes[row])
        self.key_of = {
            row: (name, classes[row]) for row, name in slices.items() if name and 1 < len(answers[name]) <= FEW
        }
        self.counts = Counter[tuple[str, str]]()

    def add(self, row: int) -> None:
        if row in self.key_of:
            self.counts[self.key_of[row]] += 1

    def rarest(self, rows: Sequence[int]) -> int:
        """The first index of a row without such a slice, or whose answer is the rarest of its slice among the rows."""
        fewest: dict[str, int] = {}
        for row in rows:
            if key := self.key_of.get(row):
                fewest[key[0]] = min(fewest.get(key[0], self.counts[key]), self.counts[key])
        keys = [self.key_of.get(row) for row in rows]
        return next(at for at, key in enumerate(keys) if not key or self.counts[key] == fewest[key[0]])


class _NearDuplicates:
    """Unit projections of the media of selected rows, by their question."""

    def __init__(self, projections: Mapping[int, np.ndarray], threshold: float) -> None:
        self.projections, self.threshold = projections, threshold
        self.chosen: defaultdict[str, list[np.ndarray]] = defaultdict(list)

    def _unit(self, row: int) -> np.ndarray:
        projection = self.projections[row].astype(np.float32)
        return projection / max(float(np.linalg.norm(projection)), 1e-6)

    def has(self, row: int, question: str) -> bool:
        """Whether a near duplicate with the same question was selected."""
        same = self.chosen[question]
        return bool(same) and float(np.max(np.stack(same) @ self._unit(row))) >= self.threshold

    def add(self, row: int, question: str) -> None:
        self.chosen[question].append(self._unit(row))


def random_rows(pool: Table, count: int, seed: int, forbidden: frozenset[str]) -> np.ndarray:
    """`count` labelled rows of a pool, drawn at random, as the control of a selection."""
    import pyarrow as pa
    import pyarrow.compute as pc

    usable, excluded = [], pa.array(sorted(forbidden), pa.string())
    for start, batch in pool.texts(("media", "answer", "problem")):
        media = pc.is_in(batch.column("media"), value_set=excluded)
        good = pc.and_(pc.is_valid(batch.column("answer")), pc.is_null(batch.column("problem")))
        usable.append(np.flatnonzero(pc.and_(good, pc.invert(media)).to_numpy(zero_copy_only=False)) + start)
    rows = np.concatenate([np.zeros(0, np.int64), *usable])
    return np.sort(np.random.default_rng(seed).permutation(rows)[:count])
