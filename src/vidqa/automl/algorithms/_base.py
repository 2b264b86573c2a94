"""The common base of all algorithms: space, goals, limits, and a random stream for each trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vidqa.automl.decisions import Decision, Done, Goal, Measured, Trial, Values
from vidqa.automl.space import Space
from vidqa.core._optional import require

if TYPE_CHECKING:
    from numpy.random import Generator

EXTRA = "automl"  # the optional dependency with optuna, cmaes, scipy
TRIES = 30  # attempts to find values that no trial has


@dataclass(frozen=True)
class Fidelity:
    """Optimizer steps of the shortest and the longest training of a trial. Each rung is `reduction` times as long as
    the previous one, and one in `reduction` trials reaches it."""

    min_steps: int
    max_steps: int
    reduction: int = 3


@dataclass(frozen=True)
class Task:
    """The space, goals and limits of a search."""

    space: Space
    goals: tuple[Goal, ...]
    seed: int
    max_trials: int
    fidelity: Fidelity

    def stream(self, number: int, salt: int = 0) -> Generator:
        """The random generator of one trial, deterministic in seed, number and salt."""
        import numpy as np

        return np.random.default_rng([self.seed, number, salt])

    def losses(self, measured: Measured) -> tuple[float, ...]:
        """The objectives of a result as losses (lower is better)."""
        return tuple(goal.loss(value) for goal, value in zip(self.goals, measured.objectives, strict=True))

    def last(self, trial: Trial) -> tuple[float, ...] | None:
        """The losses at the last measured rung; None without a result, or if one is not finite."""
        losses = self.losses(trial.measured[-1]) if trial.measured else (math.nan,)
        return losses if all(map(math.isfinite, losses)) else None

    def loss(self, trial: Trial, rung: int) -> float | None:
        """The first goal's loss of a trial at a rung; None without a result, or if it is not finite."""
        loss = next((self.losses(result)[0] for result in trial.measured if result.rung == rung), math.nan)
        return loss if math.isfinite(loss) else None

    def ranked(self, trials: Sequence[Trial], rung: int) -> list[Trial]:
        """The trials with a result at a rung, the best first; ties in the order of trial numbers."""
        results = [(loss, trial.number, trial) for trial in trials if (loss := self.loss(trial, rung)) is not None]
        return [trial for _, _, trial in sorted(results, key=lambda row: row[:2])]

    def at(self, units: Iterable[float]) -> dict[str, Any]:
        """The values at a point of the unit cube, one coordinate per parameter, without those that do not apply."""
        pairs = zip(self.space.parameters, units, strict=True)
        return self.space.applicable_values({parameter.name: parameter.at(float(unit)) for parameter, unit in pairs})

    def units(self, values: Values) -> list[float]:
        """The point of the unit cube for given values; 0.5 for parameters that do not apply."""
        return [one.unit(values[one.name]) if one.name in values else 0.5 for one in self.space.parameters]

    def drawn(self, number: int) -> dict[str, Any]:
        """Random values: each applicable parameter by its scale and weights."""
        return self.at(self.stream(number).random(len(self.space.parameters)))

    def spread(self, number: int) -> dict[str, Any]:
        """The values at a point of the study's scrambled Sobol sequence."""
        sequence = require("scipy.stats.qmc", EXTRA).Sobol(
            len(self.space.parameters), scramble=True, rng=self.stream(0)
        )
        if number:
            sequence.fast_forward(number)
        return self.at(sequence.random(1)[0])

    def unseen(self, values: dict[str, Any], trials: Sequence[Trial]) -> dict[str, Any]:
        """The values or, if a trial already has them, new values near them; unchanged if none are found."""
        tried = {spelling(self.space.applicable_values(trial.values)) for trial in trials}
        if spelling(values) not in tried:
            return values
        stream = self.stream(len(trials), 1)
        for attempt in range(1, TRIES + 1):
            near = self.at(unit + stream.normal() * attempt / TRIES for unit in self.units(values))
            if spelling(near) not in tried:
                return near
        return values


class Searcher:
    """A search algorithm. `rungs`: for each bracket the optimizer steps at the end of each rung, ascending; by default
    one bracket with one rung, the whole training."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.rungs: Sequence[Sequence[int]] = ((task.fidelity.max_steps,),)

    @property
    def has_rungs(self) -> bool:
        return any(len(bracket) > 1 for bracket in self.rungs)

    @property
    def whole_trainings(self) -> float:
        """Approximate cost of all trials of the study, in whole trainings."""
        return self.task.max_trials

    def next(self, trials: Sequence[Trial]) -> Decision:
        """The next decision, from all trials in the order of their numbers. Called again after each decision while a
        trial slot is free, and after each new result."""
        return Done() if len(trials) >= self.task.max_trials else self.proposal(trials)

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        """The next decision while there are fewer trials than the study allows."""
        raise NotImplementedError


def spelling(values: Values) -> str:
    """A text that is equal for equal values in the order of the space."""
    return repr(list(values.items()))
