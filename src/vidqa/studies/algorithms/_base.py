"""What every algorithm is made of: the space, the goals, the limits, and a random stream for each trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vidqa.studies.moves import Goal, Measured, Trial
from vidqa.studies.space import Space

if TYPE_CHECKING:
    from numpy.random import Generator

OPEN = ("waiting", "running")  # states of a trial whose next result is to come


@dataclass(frozen=True)
class Fidelity:
    """Optimizer steps of the shortest and of the longest training of a trial; each rung is `reduction` times the one
    below it, and one of as many trials reaches it."""

    min_steps: int
    max_steps: int
    reduction: int = 3


@dataclass(frozen=True)
class Task:
    """What an algorithm is asked to search."""

    name: str
    space: Space
    goals: tuple[Goal, ...]
    seed: int
    max_trials: int
    max_concurrent: int
    fidelity: Fidelity

    def stream(self, number: int) -> Generator:
        """The random numbers of one trial: the same ones whenever it is proposed."""
        import numpy as np

        return np.random.default_rng([self.seed, number])

    def losses(self, measured: Measured) -> tuple[float, ...]:
        """What was measured, as numbers of which less is better."""
        return tuple(
            -value if goal.direction == "maximize" else value
            for goal, value in zip(self.goals, measured.objectives, strict=True)
        )

    def loss(self, trial: Trial, rung: int | None = None) -> float | None:
        """The first goal's loss of a trial at a rung, or where it was measured last. None: not measured there, or no
        finite number."""
        found = [each for each in trial.measured if rung is None or each.rung == rung]
        if not found:
            return None
        loss = self.losses(found[-1])[0]
        return loss if math.isfinite(loss) else None

    def drawn(self, number: int) -> dict[str, Any]:
        """Values at random: each parameter by its scale and weights, where it applies."""
        units = self.stream(number).random(len(self.space.parameters))
        return self.at(units)

    def at(self, units: Sequence[float]) -> dict[str, Any]:
        """The values at a point of the unit cube, one coordinate a parameter, without those that do not apply."""
        places = zip(self.space.parameters, units, strict=True)
        return self.space.within({each.name: each.at(float(unit)) for each, unit in places})
