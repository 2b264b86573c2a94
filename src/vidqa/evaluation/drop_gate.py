"""Whether a second evaluation has lost more accuracy than it may, overall or in a large slice.

The accuracies themselves decide. An interval says beside them how sure that is, and how many questions would tell such
a loss from none: those with which the interval is so narrow that four of five evaluations of a model that has lost it
would show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vidqa.evaluation.comparison import Comparison, Difference

LEAST = 50  # questions of a slice that is judged
# Of the half width of a 95 % interval, for a difference to lie outside of it four times of five (80 % power).
SURE = (1.95996 + 0.84162) / 1.95996


@dataclass(frozen=True)
class Drop:
    """Points of accuracy that were lost in a slice, "overall" for all questions, with their 95 % interval; negative
    ones were gained. `needed` are the questions that would tell the largest loss allowed from none; None where no
    question changed sides, or where none may be lost."""

    name: str
    n: int
    points: float
    ci95: tuple[float, float]
    needed: int | None
    is_too_large: bool


@dataclass(frozen=True)
class DropGate:
    """`drops` are those of all questions and of slices with at least LEAST; `small` counts the other slices."""

    max_drop: float
    drops: Sequence[Drop]
    small: int

    @property
    def failed(self) -> list[Drop]:
        return [drop for drop in self.drops if drop.is_too_large]

    @property
    def lines(self) -> list[str]:
        """For a person: the verdict, a line for all questions and one for each slice that lost too much."""
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
    """Judge a comparison by the largest loss allowed, in points (hundredths of the accuracy)."""
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
