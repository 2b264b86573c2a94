"""Population-based training: at each rung the worst, and those that failed, are replaced by copies of the best with
other values.

A copy begins with the weights of its parent at the end of that rung, so parameters that shape the weights stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vidqa.automl.algorithms._base import OPEN, Fidelity, Searcher, Task
from vidqa.automl.decisions import Decision, Done, Promote, Prune, Start, Trial, Wait
from vidqa.automl.parameters import Parameter

MOST_RUNGS = 10
SHARE = 0.25  # of the population, that is replaced at a rung
AFRESH = 0.25  # probability that a value is drawn anew instead of moved
MOVED = 0.2  # of the range, at most
SMALLEST = 4


class Pbt(Searcher):
    """As many trials at a time as leave room for the copies that the rungs will make."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rungs = [intervals(task.fidelity)]
        copies = 1 + SHARE * (len(self.rungs[0]) - 1)
        self.size = min(task.max_trials, max(SMALLEST, math.floor(task.max_trials / copies)))

    def next(self, trials: Sequence[Trial]) -> Decision:
        founders = sum(trial.parent is None for trial in trials)
        if founders < self.size and len(trials) < self.task.max_trials:
            return Start(self.task.spread(len(trials)), "spread")
        for rung in range(len(self.rungs[0]) - 1):
            if any(trial.rung <= rung and trial.state in OPEN for trial in trials):
                return Wait()
            if decision := self._decision(trials, rung):
                return decision
        return Wait() if any(trial.state in OPEN for trial in trials) else Done()

    def _decision(self, trials: Sequence[Trial], rung: int) -> Decision | None:
        """First the copies, for members that failed and for the worst; then the worst are pruned, and the others go
        on."""
        reached = self.task.ranked(trials, rung)
        best = max(1, int(len(reached) * SHARE))
        failed, worst = max(0, self.size - len(reached)), min(best, len(reached) // 2)
        copies = sum(trial.extra.get("copied_at") == rung for trial in trials)
        count = min(failed + worst, self.task.max_trials - (len(trials) - copies)) if reached else 0
        if copies < count:
            parent = reached[int(self.task.stream(len(trials), 4).integers(best))]
            values = self._explored(trials, parent)
            return Start(values, "pbt", rung + 1, 0, parent.number, {"copied_at": rung})
        replaced = {trial.number for trial in reached[len(reached) - max(0, count - failed) :]}
        paused = [trial.number for trial in reached if trial.state == "paused" and trial.rung == rung]
        for number in paused:
            if number in replaced:
                return Prune(number)
        return Promote(paused[0], rung + 1) if paused else None

    def _explored(self, trials: Sequence[Trial], parent: Trial) -> dict[str, Any]:
        stream = self.task.stream(len(trials), 5)
        values: dict[str, Any] = {}
        for parameter in self.task.space.parameters:
            name, (chance, unit) = parameter.name, stream.random(2)
            if name in parent.values and (parameter.inherited or (not parameter.ordered and chance >= AFRESH)):
                values[name] = parent.values[name]
            elif name not in parent.values or chance < AFRESH:
                values[name] = parameter.at(unit)
            else:
                values[name] = _moved(parameter, parent.values[name], unit)
        return self.task.space.within(values)


def intervals(fidelity: Fidelity) -> list[int]:
    """Rungs of equal length, the shortest training each, but at most ten."""
    count = max(1, min(MOST_RUNGS, fidelity.max_steps // fidelity.min_steps))
    return [math.ceil(fidelity.max_steps * (rung + 1) / count) for rung in range(count)]


def _moved(parameter: Parameter, value: Any, unit: float) -> Any:
    """Up or down; a value among few moves to its neighbour at least."""
    least = 1 / parameter.count if parameter.count else 0.0
    away = max(MOVED, least) * (2 * unit - 1)
    return parameter.at(parameter.unit(value) + (away if abs(away) >= least else math.copysign(least, away)))
