"""Population-based training: at each rung the worst, and those that failed, are replaced by copies of the best with
other values.

A copy begins with the weights of its parent at the end of that rung, so what shapes the weights stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vidqa.automl.algorithms._base import OPEN, Fidelity, Searcher, Task
from vidqa.automl.algorithms.brackets import ranked
from vidqa.automl.algorithms.plain import spread
from vidqa.automl.moves import Done, Move, Promote, Prune, Start, Trial, Wait
from vidqa.automl.parameters import Parameter

MOST_RUNGS = 10
SHARE = 0.25  # of the population, that is replaced at a rung
AFRESH = 0.25  # how often a value is drawn anew instead of moved
MOVED = 0.2  # of the range, at most
SMALLEST = 4


class Pbt(Searcher):
    """As many trials at a time as leave room for the copies that the rungs will make."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rungs = [intervals(task.fidelity)]
        copies = 1 + SHARE * (len(self.rungs[0]) - 1)
        self.size = min(task.max_trials, max(SMALLEST, math.floor(task.max_trials / copies)))

    def next(self, trials: Sequence[Trial]) -> Move:
        first = [each for each in trials if each.parent is None]
        if len(first) < self.size and len(trials) < self.task.max_trials:
            return Start(spread(self.task, len(trials)), "spread")
        for rung in range(len(self.rungs[0]) - 1):
            if any(each.rung <= rung and each.state in OPEN for each in trials):
                return Wait()
            move = self._decided(trials, rung)
            if move is not None:
                return move
        return Wait() if any(each.state in OPEN for each in trials) else Done()

    def _decided(self, trials: Sequence[Trial], rung: int) -> Move | None:
        """First the copies, for members that failed and for the worst; then the worst are given up, and the others go
        on."""
        reached = ranked(self.task, trials, rung)
        best = max(1, int(len(reached) * SHARE))
        failed, worst = max(0, self.size - len(reached)), min(best, len(reached) // 2)
        made = sum(each.extra.get("copied_at") == rung for each in trials)
        count = min(failed + worst, self.task.max_trials - (len(trials) - made)) if reached else 0
        if made < count:
            parent = reached[int(self.task.stream(len(trials), 4).integers(best))]
            note = {"copied_at": rung}
            return Start(self._explored(trials, parent), "pbt", rung + 1, 0, parent.number, note)
        given_up = {each.number for each in reached[len(reached) - max(0, count - failed) :]}
        paused = [each for each in reached if each.state == "paused" and each.rung == rung]
        for each in paused:
            if each.number in given_up:
                return Prune(each.number)
        return Promote(paused[0].number, rung + 1) if paused else None

    def _explored(self, trials: Sequence[Trial], parent: Trial) -> dict[str, Any]:
        stream = self.task.stream(len(trials), 5)
        values: dict[str, Any] = {}
        for each in self.task.space.parameters:
            chance, place = stream.random(2)
            if each.name in parent.values and (each.inherited or (not each.ordered and chance >= AFRESH)):
                values[each.name] = parent.values[each.name]
            elif each.name not in parent.values or chance < AFRESH:
                values[each.name] = each.at(place)
            else:
                values[each.name] = _moved(each, parent.values[each.name], place)
        return self.task.space.within(values)


def intervals(fidelity: Fidelity) -> list[int]:
    """Rungs of equal length, the shortest training each, but at most ten."""
    count = max(1, min(MOST_RUNGS, fidelity.max_steps // fidelity.min_steps))
    return [math.ceil(fidelity.max_steps * (rung + 1) / count) for rung in range(count)]


def _moved(each: Parameter, value: Any, place: float) -> Any:
    """Up or down; a value among few moves to its neighbour at least."""
    unit = each.unit(value)
    width = max(MOVED, 1 / each.count) if each.count else MOVED
    away = width * (2 * place - 1)
    if each.count is not None and abs(away) < 1 / each.count:
        away = math.copysign(1 / each.count, away)
    return each.at(unit + away)
