"""Brackets of rungs: many trials begin with short trainings, and the best of each rung go on to a longer one.

Hyperband draws the trials of a bracket evenly; BOHB asks a model of Parzen estimators, and DEHB breeds them by
differential evolution. What they learn from is the longest training that enough trials have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vidqa.automl.algorithms._base import OPEN, Fidelity, Searcher, Task, unseen
from vidqa.automl.algorithms.model_based import parzen, startup
from vidqa.automl.algorithms.plain import spread
from vidqa.automl.algorithms.through_optuna import Seen
from vidqa.automl.moves import Done, Move, Promote, Prune, Start, Trial, Wait

AT_RANDOM = 0.2  # of the trials that a model could propose, so that no model shuts out a part of the space
POPULATION = 10  # trials that DEHB breeds from
SCALE, CROSSED = 0.5, 0.5  # of differential evolution: the length of its step, and the share of genes that it changes


@dataclass(frozen=True)
class Bracket:
    """The optimizer steps in all at the end of each rung, and the trials that reach it."""

    rungs: tuple[int, ...]
    sizes: tuple[int, ...]


def ladder(fidelity: Fidelity) -> list[int]:
    """Steps at the end of each rung, ascending: the whole training, and parts of it by powers of the reduction."""
    steps = [fidelity.max_steps]
    while (below := -(-fidelity.max_steps // fidelity.reduction ** len(steps))) >= fidelity.min_steps:
        if below == steps[-1]:
            break
        steps.append(below)
    return steps[::-1]


def brackets(fidelity: Fidelity, max_trials: int) -> list[Bracket]:
    """Hyperband's brackets, from the one with the most rungs to plain whole trainings and again, until they hold all
    trials; the last one may be cut short."""
    steps, by = ladder(fidelity), fidelity.reduction
    found: list[Bracket] = []
    left = max_trials
    while left > 0:
        first = len(found) % len(steps)
        after = len(steps) - 1 - first  # rungs above the first one
        began = min(left, -(-len(steps) * by**after // (after + 1)))
        found.append(Bracket(tuple(steps[first:]), tuple(max(1, began // by**rung) for rung in range(after + 1))))
        left -= began
    return found


class Hyperband(Searcher):
    """Each rung is decided when all of its trials have ended it; the next bracket fills places that are free before."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.brackets = brackets(task.fidelity, task.max_trials)
        self.rungs = [bracket.rungs for bracket in self.brackets]

    def next(self, trials: Sequence[Trial]) -> Move:
        for place, bracket in enumerate(self.brackets):
            members = [each for each in trials if each.bracket == place]
            move = self._decided(bracket, members)
            if move is not None:
                return move
            if len(members) < bracket.sizes[0] and len(trials) < self.task.max_trials:
                values, proposer = self._proposed(trials)
                return Start(unseen(self.task, values, trials), proposer, bracket=place)
        return Wait() if any(each.state in OPEN for each in trials) else Done()

    def _decided(self, bracket: Bracket, members: Sequence[Trial]) -> Move | None:
        """Who goes on from the rungs that are over, and who is given up."""
        if len(members) < bracket.sizes[0]:
            return None
        for rung, keep in enumerate(bracket.sizes[1:]):
            if any(each.rung <= rung and each.state in OPEN for each in members):
                return None
            best = ranked(self.task, members, rung)[:keep]
            paused = [each for each in members if each.state == "paused" and each.rung == rung]
            for each in best:
                if each in paused:
                    return Promote(each.number, rung + 1)
            if paused:
                return Prune(paused[0].number)
        return None

    def _proposed(self, trials: Sequence[Trial]) -> tuple[dict[str, Any], str]:
        return spread(self.task, len(trials)), "spread"

    def _learned(self, trials: Sequence[Trial], enough: int) -> list[tuple[Trial, float]]:
        """The trials that were measured at the longest training that `enough` have had, the best one first."""
        found: dict[int, list[tuple[Trial, float]]] = {}
        for each in trials:
            for rung, steps in enumerate(self.rungs[each.bracket]):
                loss = self.task.loss(each, rung)
                if loss is not None:
                    found.setdefault(steps, []).append((each, loss))
        known = max((steps for steps, results in found.items() if len(results) >= enough), default=None)
        return sorted(found[known], key=lambda pair: (pair[1], pair[0].number)) if known else []


class Bohb(Hyperband):
    """Hyperband whose trials a tree of Parzen estimators proposes."""

    def _proposed(self, trials: Sequence[Trial]) -> tuple[dict[str, Any], str]:
        number = len(trials)
        learned = self._learned(trials, startup(self.task.max_trials))
        if not learned or self.task.stream(number, 2).random() < AT_RANDOM:
            return super()._proposed(trials)
        seen = [Seen(each.values, (loss,)) for each, loss in learned]
        known = {each.number for each, _ in learned}
        for each in trials:
            if each.state in OPEN and each.number not in known:
                seen.append(Seen(each.values, None))
            elif each.state == "failed" and each.number not in known:
                seen.append(Seen(each.values, (learned[-1][1],)))  # as bad as the worst
        return parzen(self.task, seen, number), "tpe"


class Dehb(Hyperband):
    """Hyperband whose trials are bred: a good one, moved by the difference of two others, crossed with a third. What is
    promoted goes on from its checkpoint, where the published algorithm trains anew at each rung."""

    def _proposed(self, trials: Sequence[Trial]) -> tuple[dict[str, Any], str]:
        number = len(trials)
        stream = self.task.stream(number, 3)
        learned = self._learned(trials, max(4, startup(self.task.max_trials)))[:POPULATION]
        if not learned or stream.random() < AT_RANDOM:
            return super()._proposed(trials)
        points = [self.task.units(each.values) for each, _ in learned]
        target, base, one, other = (points[place] for place in stream.choice(len(points), 4, replace=False))
        forced = int(stream.integers(len(base)))  # one gene comes from the mutant in any case
        child = []
        for gene, kept in enumerate(target):
            moved = base[gene] + SCALE * (one[gene] - other[gene])
            moved = moved if 0 <= moved <= 1 else stream.random()
            child.append(moved if gene == forced or stream.random() < CROSSED else kept)
        return self.task.at(child), "de"


def ranked(task: Task, trials: Sequence[Trial], rung: int) -> list[Trial]:
    """The trials that were measured at a rung, the best one first; of equal ones the older."""
    found = [(loss, each.number, each) for each in trials if (loss := task.loss(each, rung)) is not None]
    return [each for _, _, each in sorted(found, key=lambda row: row[:2])]
