"""Which of the nearest rows are taken: so many for each gap, no near copies, both answers equally often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vidqa.curation.embeddings import Table
from vidqa.curation.search import Candidates

FEW = 12  # different answers of a slice that are balanced; of more, each is an answer of its own
Texts = Mapping[int, Mapping[str, str | None]]


@dataclass(frozen=True)
class Limits:
    """per_gap  rows that one gap takes; most  of all gaps; least  similarity of a row that is taken; alike  cosine from
    which two rows with one question are near copies; seed  of the order in which gaps take turns"""

    per_gap: int = 20
    most: int = 0
    least: float = 0.5
    alike: float = 0.999
    seed: int = 0


@dataclass(frozen=True)
class Chosen:
    """One row of the pool, and the gap (its place among the queries) that took it."""

    row: int
    gap: int
    similarity: float


@dataclass
class Choice:
    """What was chosen, in order, and why nearest rows were left out."""

    rows: list[Chosen] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def choose(
    found: Candidates, texts: Texts, classes: Mapping[int, str], limits: Limits, forbidden: frozenset[str]
) -> Choice:
    """Gaps take turns, each taking its nearest row that may be taken; of a slice's answers the rarest so far goes
    first. `classes` has the answer of rows that have one; media in `forbidden` are those of the KPI set."""
    choice, taken, looks = Choice(), set[int](), _Looks(found.looks, limits.alike)
    balanced = _balanced(texts, classes)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    waiting = [_allowed(found, gap, texts, limits, forbidden, choice) for gap in range(len(found.row))]
    taken_by = Counter[int]()
    turns = np.random.default_rng(limits.seed).permutation(len(waiting)).tolist()
    while turns and not (limits.most and len(choice.rows) >= limits.most):
        gap = turns.pop(0)
        best = _next(waiting[gap], taken, looks, texts, balanced, counts, choice)
        if best is None:
            continue
        taken.add(best.row)
        looks.add(best.row, texts[best.row]["question"] or "")
        slice_, answer = balanced.get(best.row, ("", ""))
        counts[slice_][answer] += 1
        choice.rows.append(best)
        taken_by[gap] += 1
        if taken_by[gap] < limits.per_gap:
            turns.append(gap)
    return choice


def _allowed(
    found: Candidates, gap: int, texts: Texts, limits: Limits, forbidden: frozenset[str], choice: Choice
) -> list[Chosen]:
    allowed = []
    for row, similarity in zip(found.row[gap].tolist(), found.similarity[gap].tolist(), strict=True):
        if row < 0:
            continue
        if similarity < limits.least:
            choice.left_out["not alike enough"] += 1
        elif texts[row]["problem"]:
            choice.left_out["cannot be decoded"] += 1
        elif texts[row]["media"] in forbidden:
            choice.left_out["in the KPI set"] += 1
        else:
            allowed.append(Chosen(row, gap, similarity))
    return allowed


def _next(
    waiting: list[Chosen],
    taken: set[int],
    looks: _Looks,
    texts: Texts,
    balanced: Mapping[int, tuple[str, str]],
    counts: Mapping[str, Counter[str]],
    choice: Choice,
) -> Chosen | None:
    """Takes from what waits; what may not be taken any more leaves."""
    while waiting:
        fewest: dict[str, int] = {}
        for each in waiting:
            slice_, answer = balanced.get(each.row, ("", ""))
            fewest[slice_] = min(fewest.get(slice_, 1 << 30), counts[slice_][answer])
        at = next(
            at
            for at, each in enumerate(waiting)
            for slice_, answer in [balanced.get(each.row, ("", ""))]
            if not slice_ or counts[slice_][answer] == fewest[slice_]
        )
        best = waiting.pop(at)
        if best.row in taken:
            continue
        if looks.has(best.row, texts[best.row]["question"] or ""):
            choice.left_out["near copies"] += 1
            continue
        return best
    return None


def _balanced(texts: Texts, classes: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """(slice, answer) of the rows whose slice has few different answers. A slice is a kind, or a question."""
    slices = {row: texts[row]["kind"] or texts[row]["question"] or "" for row in classes}
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for row, slice_ in slices.items():
        answers[slice_].add(classes[row])
    return {row: (slice_, classes[row]) for row, slice_ in slices.items() if 1 < len(answers[slice_]) <= FEW}


class _Looks:
    """What the rows that were taken look like, by their question."""

    def __init__(self, looks: Mapping[int, np.ndarray], alike: float) -> None:
        self.looks, self.alike = looks, alike
        self.taken: defaultdict[str, list[np.ndarray]] = defaultdict(list)

    def _unit(self, row: int) -> np.ndarray:
        look = self.looks[row].astype(np.float32)
        return look / max(float(np.linalg.norm(look)), 1e-6)

    def has(self, row: int, question: str) -> bool:
        """Whether a near copy with the same question was taken."""
        same = self.taken[question]
        return bool(same) and float(np.max(np.stack(same) @ self._unit(row))) >= self.alike

    def add(self, row: int, question: str) -> None:
        self.taken[question].append(self._unit(row))


def random_rows(pool: Table, count: int, seed: int, forbidden: frozenset[str]) -> np.ndarray:
    """As many labelled rows of a pool, drawn without a look at the gaps: what a choice is measured against."""
    import pyarrow.compute as pc

    usable = []
    for start, batch in pool.texts(("media", "answer", "problem")):
        media = pc.is_in(batch.column("media"), value_set=pa_strings(forbidden))
        good = pc.and_(pc.is_valid(batch.column("answer")), pc.is_null(batch.column("problem")))
        usable.append(np.flatnonzero(pc.and_(good, pc.invert(media)).to_numpy(zero_copy_only=False)) + start)
    rows = np.concatenate([np.zeros(0, np.int64), *usable])
    return np.sort(np.random.default_rng(seed).permutation(rows)[:count])


def pa_strings(texts: frozenset[str]) -> Any:
    import pyarrow

    return pyarrow.array(sorted(texts), pyarrow.string())
