"""What every algorithm is made of: the space, the goals, the limits, and a random stream for each trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vidqa.automl.moves import Goal, Measured, Trial, Values
from vidqa.automl.space import Space

if TYPE_CHECKING:
    from numpy.random import Generator

OPEN = ("waiting", "running")  # states of a trial whose next result is to come
TRIES = 30  # to find values that no trial has


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

    def stream(self, number: int, salt: int = 0) -> Generator:
        """The random numbers of one trial: the same ones whenever it is proposed."""
        import numpy as np

        return np.random.default_rng([self.seed, number, salt])

    def losses(self, measured: Measured) -> tuple[float, ...]:
        """What was measured, as numbers of which less is better."""
        return tuple(
            -value if goal.direction == "maximize" else value
            for goal, value in zip(self.goals, measured.objectives, strict=True)
        )

    def last(self, trial: Trial) -> tuple[float, ...] | None:
        """The losses where a trial was measured last. None: nowhere, or not all are finite numbers."""
        losses = self.losses(trial.measured[-1]) if trial.measured else (math.nan,)
        return losses if all(map(math.isfinite, losses)) else None

    def loss(self, trial: Trial, rung: int) -> float | None:
        """The first goal's loss of a trial at a rung. None: not measured there, or no finite number."""
        found = next((self.losses(each)[0] for each in trial.measured if each.rung == rung), math.nan)
        return found if math.isfinite(found) else None

    def drawn(self, number: int, salt: int = 0) -> dict[str, Any]:
        """Values at random: each parameter by its scale and weights, where it applies."""
        return self.at(self.stream(number, salt).random(len(self.space.parameters)))

    def at(self, units: Iterable[float]) -> dict[str, Any]:
        """The values at a point of the unit cube, one coordinate a parameter, without those that do not apply."""
        places = zip(self.space.parameters, units, strict=True)
        return self.space.within({each.name: each.at(float(unit)) for each, unit in places})

    def units(self, values: Values) -> list[float]:
        """The point of the unit cube of some values; 0.5 for what does not apply there."""
        return [each.unit(values[each.name]) if each.name in values else 0.5 for each in self.space.parameters]


class Searcher:
    """What all algorithms share. One bracket of one rung, the whole training, where nothing else is said."""

    def __init__(self, task: Task) -> None:
        self.task, self.name = task, task.name
        self.rungs: Sequence[Sequence[int]] = ((task.fidelity.max_steps,),)


def spelling(values: Values) -> str:
    """The same text for the same values, which stand in the order of the space."""
    return repr(list(values.items()))


def unseen(task: Task, values: dict[str, Any], trials: Sequence[Trial]) -> dict[str, Any]:
    """The values, or, where a trial has them already, values near them that none has, as far as there are any."""
    known = {spelling(task.space.within(each.values)) for each in trials}
    if spelling(values) not in known:
        return values
    stream = task.stream(len(trials), 1)
    for attempt in range(1, TRIES + 1):
        moved = [unit + stream.normal() * attempt / TRIES for unit in task.units(values)]
        near = task.at(min(max(unit, 0.0), 1.0) for unit in moved)
        if spelling(near) not in known:
            return near
    return values
