"""Searches that learn nothing from results: at random, on a grid, evenly spread, and by an agent outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any

from vidqa.contract._optional import require
from vidqa.automl.algorithms._base import Searcher, Task, spelling, unseen
from vidqa.automl.moves import Done, Move, Start, Trial, Wait


class RandomSearch(Searcher):
    """Every trial is drawn by itself."""

    def next(self, trials: Sequence[Trial]) -> Move:
        number = len(trials)
        if number >= self.task.max_trials:
            return Done()
        return Start(unseen(self.task, self.task.drawn(number), trials), "random")


class GridSearch(Searcher):
    """All combinations, in a random order: a grid that is not finished has still seen all sides of the space."""

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        axes = [[(place + 0.5) / count for place in range(count)] for count in grid_counts(self.task)]
        ends = [_to_the_ends(axis) if each.count is None else axis for axis, each in self._axes(axes)]
        found = {spelling(values): values for values in map(self.task.at, product(*ends))}
        order = self.task.stream(0).permutation(len(found))
        points = list(found.values())
        return [points[place] for place in order]

    def _axes(self, axes: list[list[float]]) -> list[Any]:
        return list(zip(axes, self.task.space.parameters, strict=True))

    def next(self, trials: Sequence[Trial]) -> Move:
        known = {spelling(self.task.space.within(each.values)) for each in trials}
        left = next((values for values in self.points if spelling(values) not in known), None)
        if left is None or len(trials) >= self.task.max_trials:
            return Done()
        return Start(left, "grid")


def grid_counts(task: Task) -> list[int]:
    """The values of each parameter on the grid: all of a few; of a range of numbers so many that the whole grid has
    about as many points as there are trials, and at least two."""
    most = [each.count or task.max_trials for each in task.space.parameters]
    counts = [count if not each.ordered else 2 for each, count in zip(task.space.parameters, most, strict=True)]
    while True:
        grown = [place for place, count in enumerate(counts) if count < most[place]]
        if not grown:
            return counts
        place = min(grown, key=lambda each: counts[each])
        more = [*counts[:place], counts[place] + 1, *counts[place + 1 :]]
        if math.prod(more) > task.max_trials:
            return counts
        counts = more


def _to_the_ends(axis: list[float]) -> list[float]:
    """Places from 0 to 1, both among them."""
    return [place / (len(axis) - 1) for place in range(len(axis))]


class QuasiRandom(Searcher):
    """A scrambled Sobol sequence: as many points as there are trials lie evenly."""

    def next(self, trials: Sequence[Trial]) -> Move:
        if len(trials) >= self.task.max_trials:
            return Done()
        return Start(unseen(self.task, spread(self.task, len(trials)), trials), "qmc")


def spread(task: Task, number: int) -> dict[str, Any]:
    """The values at a point of the study's Sobol sequence."""
    qmc = require("scipy.stats.qmc", "automl")
    sequence = qmc.Sobol(len(task.space.parameters), scramble=True, rng=task.stream(0))
    if number:
        sequence.fast_forward(number)
    return task.at(sequence.random(1)[0])


class Agent(Searcher):
    """Trials come from outside alone."""

    def next(self, trials: Sequence[Trial]) -> Move:
        return Done() if len(trials) >= self.task.max_trials else Wait()
