"""Searches that learn nothing from results: random, grid, evenly spread, and by an agent outside.

optuna's samplers of these names need a study that remembers its draws, choices instead of ranges for the grid, and know
no weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any

from vidqa.automl.algorithms._base import Searcher, Task, spelling
from vidqa.automl.decisions import Decision, Done, Start, Trial, Wait


class RandomSearch(Searcher):
    """Independent draws."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        return Start(self.task.unseen(self.task.drawn(len(trials)), trials), "random")


class QuasiRandom(Searcher):
    """A scrambled Sobol sequence, which covers the space evenly."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        return Start(self.task.unseen(self.task.spread(len(trials)), trials), "qmc")


class GridSearch(Searcher):
    """All combinations, in a random order: an unfinished grid has still covered all sides of the space."""

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        axes = []
        for count, parameter in zip(grid_counts(self.task), self.task.space.parameters, strict=True):
            steps = [(place + 0.5) / count for place in range(count)]
            axes.append(steps if parameter.count else [place / (count - 1) for place in range(count)])  # to both ends
        unique = {spelling(values): values for values in map(self.task.at, product(*axes))}
        points = list(unique.values())
        return [points[place] for place in self.task.stream(0).permutation(len(points))]

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        tried = {spelling(self.task.space.within(trial.values)) for trial in trials}
        values = next((values for values in self.points if spelling(values) not in tried), None)
        return Done() if values is None else Start(values, "grid")


def grid_counts(task: Task) -> list[int]:
    """The values of each parameter on the grid: all of a few; of a range of numbers so many that the whole grid has
    about as many points as there are trials, and at least two."""
    most = [parameter.count or task.max_trials for parameter in task.space.parameters]
    counts = [2 if parameter.ordered else count for parameter, count in zip(task.space.parameters, most, strict=True)]
    while growing := [place for place, count in enumerate(counts) if count < most[place]]:
        place = min(growing, key=counts.__getitem__)
        counts[place] += 1
        if math.prod(counts) > task.max_trials:
            counts[place] -= 1
            break
    return counts


class Agent(Searcher):
    """All trials come from outside."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        return Wait()
