"""Paired comparison of two evaluations of the same questions.

Both models answered the same questions, so only the questions with different correctness count: those that the second
model fixed, and those that it broke. Correctness is correlated among questions about one video: the bootstrap interval
resamples videos, and the permutation test flips the signs of videos.

The drop gate asks whether the second model lost more accuracy than allowed, overall or in a large slice. It decides by
the accuracies themselves. The interval beside them shows the uncertainty, and `needed` is the number of questions to
detect such a loss: with that many, the interval is so narrow that four of five evaluations of a model with this loss
would show it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.core.files import read_object
from vidqa.core.problem import Problem
from vidqa.evaluation.accuracy import majority, one_answer, video_clusters
from vidqa.evaluation.answers import UNANSWERED
from vidqa.evaluation.problems import COMPARISON_UNEQUAL
from vidqa.evaluation.results import Item, compare_recipes, groups, question_of, read_evaluation, results_files

SCHEMA = "vidqa.comparison.v1"
SEED = 1
DRAWS = 10_000  # resamples of an interval, and sign flips of a test
AT_ONCE = 1 << 22  # resampled videos in one array
LEVEL = 0.05
UNKNOWN = "make sure that frames, prompts and generation settings were equal, or evaluate both with scripts/launch.py"
LEAST = 50  # questions of the smallest slice in the drop gate
# A difference of this many half widths of a 95 % interval is outside of it four times of five (80 % power).
SURE = (1.95996 + 0.84162) / 1.95996
Pair = tuple[Item, Item]
Side = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """The second accuracy minus the first, over `n` questions about `n_videos` videos (a question without media is its
    own video).

    `ci95` is the interval of the difference by bootstrap over videos. `p_value` is that of a sign-flip test over
    videos: the probability of a difference at least as large if the two models were equal; `p_corrected` is Holm's
    correction for all compared slices. `mcnemar_p` is McNemar's exact test, which assumes independent questions.
    """

    n: int
    n_videos: int
    before: float
    after: float
    difference: float
    ci95: tuple[float, float]
    fixed: int
    broken: int
    p_value: float
    mcnemar_p: float
    p_corrected: float
    name: str = ""

    @property
    def verdict(self) -> str:
        """Better, worse, or no significant difference: both the interval and the test must be significant."""
        if self.p_corrected >= LEVEL or self.ci95[0] <= 0 <= self.ci95[1]:
            return "no significant difference"
        return "better" if self.difference > 0 else "worse"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def side_of(items: Sequence[Item]) -> Side:
    """Facts of one evaluation of at least one item: majority-class baseline, and counts of unreadable answers."""
    status = Counter(item["parse_status"] for item in items)
    counts = {name: status[name] for name in UNANSWERED}
    return {"n": len(items), "majority_accuracy": majority(items)["majority_accuracy"], **counts}


@dataclass(frozen=True)
class Comparison:
    """Two evaluations, the overall difference, that of every slice, and the questions whose correctness changed."""

    folders: tuple[str, str]
    whole: Difference
    by: str
    slices: list[Difference]
    fixed: list[Pair]
    broken: list[Pair]
    sides: tuple[Side, Side]
    reservations: list[str]
    problems: list[Problem] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The verdict with its reservations: "better, but only because more answers can be read"."""
        shorts = [reservation.partition(":")[0] for reservation in self.reservations]
        return f"{self.whole.verdict}, but {' and '.join(shorts)}" if shorts else self.whole.verdict

    def as_dict(self) -> dict[str, Any]:
        names = {"fixed": [a["sample_id"] for a, _ in self.fixed], "broken": [a["sample_id"] for a, _ in self.broken]}
        return {
            "schema": SCHEMA,
            "before": self.folders[0],
            "after": self.folders[1],
            "verdict": self.whole.verdict,
            "sentence": self.sentence,
            "reservations": self.reservations,
            "sides": {"before": self.sides[0], "after": self.sides[1]},
            "whole": self.whole.as_dict(),
            "by": self.by,
            "slices": [part.as_dict() for part in self.slices],
            "samples": names,
        }


def compare(before: Path, after: Path, by: str = "kind") -> Comparison:
    """Compare the results of two evaluation folders, with slices by the item's field `by`.

    Raises COMPARISON_UNEQUAL if the scores were made with different recipes or are of other questions, and the problems
    of results that cannot be read.
    """
    evaluations = [read_evaluation(place) for place in (before, after)]
    if before.resolve() == after.resolve():
        raise COMPARISON_UNEQUAL.error(after, "it is compared with itself", "name two evaluations")
    problems = _recipe_problems(before, after)
    first, second = ([item for item in items if item["correct"] is not None] for items, _ in evaluations)
    pairs = paired(first, second, str(after))
    changed = [(a, b) for a, b in pairs if a["correct"] != b["correct"]]
    whole = difference(pairs)
    fixed, broken = ([pair for pair in changed if pair[side]["correct"]] for side in (1, 0))
    slices = [
        difference([pair for pair in pairs if pair[0][by] == name], str(name))
        for name in dict(groups([a for a, _ in pairs], by))
    ]
    return Comparison(
        (str(before), str(after)),
        whole,
        by,
        corrected(slices),
        fixed,
        broken,
        (side_of([a for a, _ in pairs]), side_of([b for _, b in pairs])),
        _reservations(whole, pairs, fixed, broken),
        [*problems, *(problem for _, warnings in evaluations for problem in warnings)],
    )


def _reservations(whole: Difference, pairs: Sequence[Pair], fixed: Sequence[Pair], broken: Sequence[Pair]) -> list[str]:
    """Reasons why the verdict may say little about the model."""
    answered = [pair for pair in pairs if all(item["parse_status"] == "parsed" for item in pair)]
    among_answered = difference(answered).verdict if answered else "no significant difference"
    changed = [a for a, _ in fixed] if whole.difference > 0 else [b for _, b in broken]
    reservations = unread_answers(changed, whole.verdict, among_answered)
    return reservations + trivial([b for _, b in pairs], whole.after, whole.verdict)


def unread_answers(changed: Sequence[Item], verdict: str, answered_verdict: str) -> list[str]:
    """A reservation if a verdict depends on questions that only one model answered in a readable form.

    `changed` are the fixed questions as answered before, or the broken ones as answered after; `answered_verdict` is
    the verdict over the questions that both models answered.
    """
    status = Counter(item["parse_status"] for item in changed if item["parse_status"] != "parsed")
    if verdict == "no significant difference" or not status or answered_verdict == verdict:
        return []
    counts = ", ".join(f"{status[name]} {name}" for name in UNANSWERED if status[name])
    if verdict == "better":
        short, change, when = "because more answers can be read", "fixed", "before"
    else:
        short, change, when = "because fewer answers can be read", "broken", "after"
    cause = "; generation.max_tokens decides how many end" if status["truncated"] else ""
    return [
        f"only {short}: of {len(changed)} {change} questions {status.total()} had no answer {when} ({counts}); "
        f"verdict over the questions that both answered: {answered_verdict}{cause}"
    ]


def trivial(after: Sequence[Item], accuracy: float, verdict: str) -> list[str]:
    """Reservations if a baseline without understanding would reach the better score."""
    if verdict != "better":
        return []
    reservations = []
    baseline = majority(after)
    if accuracy <= baseline["majority_accuracy"]:
        answers = ", ".join(
            f"{answer!r} to every {kind} question" for kind, answer in baseline["majority_answers"].items()
        )
        share = 100 * baseline["majority_accuracy"]
        reservations.append(f"no higher than the majority-class baseline: always {answers} scores {share:.1f} %")
    if only := ", ".join(f"{row['answer']!r} to every {row['kind']} question" for row in one_answer(after)[:3]):
        reservations.append(f"the second model always gives one answer: {only}")
    return reservations


def _recipe_problems(before: Path, after: Path) -> list[Problem]:
    """Check that the recipes are comparable. Raises COMPARISON_UNEQUAL. A warning if neither score has a recipe."""
    recipes = [_recipe(place) for place in (before, after)]
    if not any(recipes):
        return [COMPARISON_UNEQUAL.at(after, "neither of the two has a recipe.json", UNKNOWN, severity="warning")]
    if not all(recipes):
        missing = after if recipes[0] else before
        raise COMPARISON_UNEQUAL.error(missing, "it has no recipe.json, but the other one does")
    if differences := compare_recipes(*recipes):
        more = f"; and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise COMPARISON_UNEQUAL.error(after, f"{'; '.join(differences[:8])}{more}")
    return []


def _recipe(place: Path) -> dict[str, Any]:
    """The recipe in a folder or beside its results, without the rules for answers: both sides are judged again. Raises
    COMPARISON_UNEQUAL if parts of one evaluation were made with different recipes."""
    folders = dict.fromkeys(
        [place if place.is_dir() else place.parent, *(path.parent for path in results_files(place))]
    )
    recipes = []
    for file in (folder / "recipe.json" for folder in folders if (folder / "recipe.json").is_file()):
        if not (recipe := read_object(file)):
            raise COMPARISON_UNEQUAL.error(file, "it contains no readable recipe")
        recipes.append(recipe)
        if isinstance(scoring := recipe.get("scoring"), dict):
            scoring.pop("answer_rules", None)
        if differences := compare_recipes(recipes[0], recipe):
            raise COMPARISON_UNEQUAL.error(place, f"its parts differ: {'; '.join(differences[:8])}")
    return recipes[0] if recipes else {}


def paired(before: Sequence[Item], after: Sequence[Item], where: str) -> list[Pair]:
    """Pairs of items of the same question, in the order of `before`. Raises COMPARISON_UNEQUAL."""
    first, second = ({question_of(item): item for item in items} for items in (before, after))
    twice = len(before) - len(first) + len(after) - len(second)
    only = len(first.keys() - second.keys()), len(second.keys() - first.keys())
    changed = [key for key in first if key in second and first[key]["gt"] != second[key]["gt"]]
    if not before or twice or any(only) or changed:
        message = (
            f"{len(before)} and {len(after)} judged questions; only in one: {only[0]} and {only[1]}, twice: {twice}, "
            f"with another expected answer: {len(changed)}"
        )
        raise COMPARISON_UNEQUAL.error(where, message)
    return [(item, second[key]) for key, item in first.items()]


def difference(pairs: Sequence[Pair], name: str = "") -> Difference:
    """The difference between the models over some questions."""
    before, after = ([bool(pair[side]["correct"]) for pair in pairs] for side in (0, 1))
    names = video_clusters(a["video_id"] for a, _ in pairs)
    videos = {name: at for at, name in enumerate(dict.fromkeys(names))}
    at = np.array([videos[name] for name in names])
    change = np.array(after, np.int64) - np.array(before, np.int64)
    sums, counts = np.bincount(at, change, len(videos)), np.bincount(at, minlength=len(videos))
    fixed, broken = int((change > 0).sum()), int((change < 0).sum())
    p_value = sign_flip_p(sums)
    return Difference(
        n=len(pairs),
        n_videos=len(videos),
        before=round(sum(before) / len(pairs), 6),
        after=round(sum(after) / len(pairs), 6),
        difference=round(float(change.mean()), 6),
        ci95=bootstrap(sums, counts),
        fixed=fixed,
        broken=broken,
        p_value=p_value,
        mcnemar_p=mcnemar_p(fixed, broken),
        p_corrected=p_value,
        name=name,
    )


def bootstrap(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of sum(sums) / sum(counts), with videos resampled with replacement."""
    random = np.random.default_rng(SEED)
    draws: list[np.ndarray] = []
    for size in _chunks(len(sums)):
        chosen = random.integers(0, len(sums), (size, len(sums)))
        draws.append(sums[chosen].sum(1) / counts[chosen].sum(1))
    low, high = np.quantile(np.concatenate(draws), [0.025, 0.975])
    return round(float(low), 6), round(float(high), 6)


def sign_flip_p(sums: np.ndarray) -> float:
    """The two-sided p-value of a sum over videos under random sign flips."""
    moved = np.abs(sums[sums != 0])
    if not len(moved):
        return 1.0
    random, reached, total = np.random.default_rng(SEED), 0, abs(float(sums.sum()))
    for size in _chunks(len(moved)):
        signs = random.integers(0, 2, (size, len(moved))) * 2 - 1
        reached += int((np.abs((signs * moved).sum(1)) >= total - 1e-9).sum())
    return round((reached + 1) / (DRAWS + 1), 6)


def _chunks(width: int) -> list[int]:
    size = max(1, min(DRAWS, AT_ONCE // width))
    return [min(size, DRAWS - done) for done in range(0, DRAWS, size)]


def mcnemar_p(fixed: int, broken: int) -> float:
    """McNemar's exact two-sided p-value: under its null hypothesis, fixed and broken are equally likely."""
    from scipy.special import bdtr

    return round(min(1.0, 2 * float(bdtr(min(fixed, broken), fixed + broken, 0.5))), 6)


def corrected(slices: Sequence[Difference]) -> list[Difference]:
    """Slices with Holm's correction for multiple comparisons."""
    order = sorted(range(len(slices)), key=lambda at: slices[at].p_value)
    products = [min(1.0, slices[at].p_value * (len(slices) - rank)) for rank, at in enumerate(order)]
    values = dict(zip(order, accumulate(products, max), strict=True))
    return [replace(part, p_corrected=round(values[at], 6)) for at, part in enumerate(slices)]


# --- drop gate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drop:
    """Points of accuracy lost in a slice ("overall" for all questions), with their 95 % interval; negative for a gain.
    `needed` is the number of questions to detect the largest allowed loss; None if no question changed correctness, or
    if no loss is allowed."""

    name: str
    n: int
    points: float
    ci95: tuple[float, float]
    needed: int | None
    is_too_large: bool


@dataclass(frozen=True)
class DropGate:
    """The drop gate's result: drops of all questions and of slices of at least LEAST; `small` counts the others."""

    max_drop: float
    drops: Sequence[Drop]
    small: int

    @property
    def failed(self) -> list[Drop]:
        return [drop for drop in self.drops if drop.is_too_large]

    @property
    def lines(self) -> list[str]:
        """Lines of text: the verdict, one line for all questions and one for each slice that lost too much."""
        verdict = "more is lost than" if self.failed else "no more is lost than"
        judged = f"{len(self.drops) - 1} slices with at least {LEAST} questions judged, {self.small} smaller ones not"
        shown = [self.drops[0], *(drop for drop in self.failed if drop is not self.drops[0])]
        return [f"{verdict} {self.max_drop:g} points allow; {judged}", *(self._line(drop) for drop in shown)]

    def _line(self, drop: Drop) -> str:
        low, high = drop.ci95
        lost = f"{drop.name or '(none)'}: {drop.points:.1f} points lost (95 %: {low:.1f} to {high:.1f})"
        if drop.needed is None:
            return f"{lost} with {drop.n} questions"
        return f"{lost} with {drop.n} questions; {drop.needed} would tell a loss of {self.max_drop:g} from none"

    def as_dict(self) -> dict[str, Any]:
        drops = [asdict(drop) for drop in self.drops]
        return {"max_drop": self.max_drop, "passed": not self.failed, "drops": drops, "small_slices": self.small}


def judge_drop(comparison: Comparison, max_drop: float) -> DropGate:
    """Judge a comparison by the largest allowed loss, in points (hundredths of the accuracy)."""
    large = [part for part in comparison.slices if part.n >= LEAST]
    drops = [_drop(comparison.whole, "overall", max_drop), *(_drop(part, part.name, max_drop) for part in large)]
    return DropGate(max_drop, drops, len(comparison.slices) - len(large))


def _drop(difference: Difference, name: str, max_drop: float) -> Drop:
    points = round(-100 * difference.difference, 4) + 0.0  # no negative zero
    low, high = (round(-100 * limit, 4) + 0.0 for limit in reversed(difference.ci95))
    half, needed = (high - low) / 2, None
    if half and max_drop:
        needed = math.ceil(difference.n * (SURE * half / max_drop) ** 2)
    return Drop(name, difference.n, points, (low, high), needed, points > max_drop)
