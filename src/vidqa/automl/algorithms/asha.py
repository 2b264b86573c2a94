"""ASHA, by promotion: a free place goes to the best trial that may climb a rung, else to a new one; nobody waits."""

from __future__ import annotations

from collections.abc import Sequence

from vidqa.automl.algorithms._base import OPEN, Searcher, Task, unseen
from vidqa.automl.algorithms.brackets import ladder, ranked
from vidqa.automl.algorithms.plain import spread
from vidqa.automl.moves import Done, Move, Promote, Start, Trial, Wait


class Asha(Searcher):
    """One bracket. Of the trials measured at a rung, one in `reduction` may go on from its checkpoint."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rungs = [ladder(task.fidelity)]

    def next(self, trials: Sequence[Trial]) -> Move:
        top = len(self.rungs[0]) - 1
        for rung in range(top - 1, -1, -1):
            reached = ranked(self.task, trials, rung)
            for each in reached[: len(reached) // self.task.fidelity.reduction]:
                if each.state == "paused" and each.rung == rung:
                    return Promote(each.number, rung + 1)
        if len(trials) < self.task.max_trials:
            return Start(unseen(self.task, spread(self.task, len(trials)), trials), "spread")
        if any(each.state in OPEN for each in trials):
            return Wait()
        return self._to_the_top(trials, top)

    def _to_the_top(self, trials: Sequence[Trial], top: int) -> Move:
        """With few trials a rung may promote none: the best one is trained to the end all the same."""
        if not ranked(self.task, trials, top):
            for rung in range(top - 1, -1, -1):
                for each in ranked(self.task, trials, rung):
                    if each.state == "paused" and each.rung == rung:
                        return Promote(each.number, rung + 1)
        return Done()
