"""Searches that learn nothing from results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidqa.studies.algorithms._base import Task
from vidqa.studies.moves import Algorithm, Done, Move, Start, Trial


@dataclass(frozen=True)
class RandomSearch:
    """Every trial is drawn by itself."""

    task: Task

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def rungs(self) -> Sequence[Sequence[int]]:
        return ((self.task.fidelity.max_steps,),)

    def next(self, trials: Sequence[Trial]) -> Move:
        if len(trials) >= self.task.max_trials:
            return Done()
        return Start(self.task.drawn(len(trials)), "random")


def random_search(task: Task) -> Algorithm:
    return RandomSearch(task)
