"""Multi-fidelity algorithms: many trials begin with short trainings, and the best of each rung continue to the next.

ASHA has one bracket and never waits. Hyperband decides a rung when all of its trials have ended it, and draws trials
evenly; BOHB proposes them by a tree of Parzen estimators, `hyperband-de` by differential evolution. Both learn from the
longest training that enough trials have had. PBT replaces the worst at each rung by copies of the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from vidqa.automl.algorithms._base import Fidelity, Searcher, Task
from vidqa.automl.algorithms.samplers import observed, parzen, startup
from vidqa.automl.decisions import Decision, Done, Promote, Prune, Start, Trial, Wait
from vidqa.automl.parameters import Parameter

AT_RANDOM = 0.2  # share of random trials, so that a model never excludes a part of the space
POPULATION = 10  # population of differential evolution
SCALE, CROSSED = 0.5, 0.5  # of differential evolution: the length of its step, and its crossover rate
# Constants of population-based training:
MOST_RUNGS = 10
REPLACED = 0.25  # share of the population that is replaced at a rung
AFRESH = 0.25  # probability that a value is resampled instead of perturbed
MOVED = 0.2  # largest perturbation as a share of the range
SMALLEST = 4


@dataclass(frozen=True)
class Bracket:
    """Cumulative optimizer steps at the end of each rung, and the number of trials that reach it."""

    rungs: tuple[int, ...]
    sizes: tuple[int, ...]


def ladder(fidelity: Fidelity) -> list[int]:
    """Steps at the end of each rung, ascending: the whole training, divided by powers of the reduction."""
    steps = [fidelity.max_steps]
    while (below := -(-fidelity.max_steps // fidelity.reduction ** len(steps))) >= fidelity.min_steps:
        if below == steps[-1]:
            break
        steps.append(below)
    return steps[::-1]


def brackets(fidelity: Fidelity, max_trials: int) -> list[Bracket]:
    """Hyperband's brackets, from the one with the most rungs to whole trainings only, repeated until they hold all
    trials; the last one may be truncated."""
    steps, by = ladder(fidelity), fidelity.reduction
    rows: list[Bracket] = []
    left = max_trials
    while left > 0:
        first = len(rows) % len(steps)
        above = len(steps) - 1 - first  # rungs above the first one
        size = min(left, -(-len(steps) * by**above // (above + 1)))
        rows.append(Bracket(tuple(steps[first:]), tuple(max(1, size // by**rung) for rung in range(above + 1))))
        left -= size
    return rows


def climb(rungs: Sequence[int], sizes: Iterable[float]) -> float:
    """Total cost, in whole trainings, of trials if `sizes` of them reach the end of each rung."""
    return sum(size * (end - begin) for size, begin, end in zip(sizes, (0, *rungs), rungs, strict=False)) / rungs[-1]


class Asha(Searcher):
    """ASHA by promotion: a free slot goes to the best trial that may climb a rung, else to a new one. Of the trials
    measured at a rung, one in `reduction` may resume from its checkpoint."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rungs = [ladder(task.fidelity)]

    @property
    def whole_trainings(self) -> float:
        by = self.task.fidelity.reduction
        return climb(self.rungs[0], (max(1, self.task.max_trials / by**rung) for rung in count()))

    def next(self, trials: Sequence[Trial]) -> Decision:
        if promoted := self._promotion(trials, self.task.fidelity.reduction):
            return promoted
        if len(trials) < self.task.max_trials:
            return Start(self.task.unseen(self.task.spread(len(trials)), trials), "spread")
        if any(trial.state == "running" for trial in trials):
            return Wait()
        if self.task.ranked(trials, len(self.rungs[0]) - 1):
            return Done()
        # With few trials a rung may promote none: the best one is nevertheless trained to the end.
        return self._promotion(trials, 1) or Done()

    def _promotion(self, trials: Sequence[Trial], reduction: int) -> Promote | None:
        """Promote a paused trial of the highest possible rung that is among the best `1 / reduction` of its rung."""
        for rung in range(len(self.rungs[0]) - 2, -1, -1):
            reached = self.task.ranked(trials, rung)
            for trial in reached[: len(reached) // reduction]:
                if trial.state == "paused" and trial.rung == rung:
                    return Promote(trial.number, rung + 1)
        return None


class Hyperband(Searcher):
    """Hyperband: a rung is decided when all of its trials have ended it; the next bracket fills slots until then."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.brackets = brackets(task.fidelity, task.max_trials)
        self.rungs = [bracket.rungs for bracket in self.brackets]

    @property
    def whole_trainings(self) -> float:
        return sum(climb(bracket.rungs, bracket.sizes) for bracket in self.brackets)

    def next(self, trials: Sequence[Trial]) -> Decision:
        for place, bracket in enumerate(self.brackets):
            members = [trial for trial in trials if trial.bracket == place]
            if decision := self._decision(bracket, members):
                return decision
            if len(members) < bracket.sizes[0] and len(trials) < self.task.max_trials:
                values, proposer = self._values(trials)
                return Start(self.task.unseen(values, trials), proposer, bracket=place)
        return Wait() if any(trial.state == "running" for trial in trials) else Done()

    def _decision(self, bracket: Bracket, members: Sequence[Trial]) -> Decision | None:
        """Promote trials of the complete rungs, then prune the others."""
        if len(members) < bracket.sizes[0]:
            return None
        for rung, size in enumerate(bracket.sizes[1:]):
            if any(trial.rung <= rung and trial.state == "running" for trial in members):
                return None
            paused = [trial for trial in members if trial.state == "paused" and trial.rung == rung]
            for trial in self.task.ranked(members, rung)[:size]:
                if trial in paused:
                    return Promote(trial.number, rung + 1)
            if paused:
                return Prune(paused[0].number)
        return None

    def _values(self, trials: Sequence[Trial]) -> tuple[dict[str, Any], str]:
        return self.task.spread(len(trials)), "spread"

    def _results(self, trials: Sequence[Trial], enough: int) -> list[tuple[Trial, float]]:
        """Trials and losses at the longest training that at least `enough` trials have had, the best first."""
        by_steps: dict[int, list[tuple[Trial, float]]] = {}
        for trial in trials:
            for rung, steps in enumerate(self.rungs[trial.bracket]):
                loss = self.task.loss(trial, rung)
                if loss is not None:
                    by_steps.setdefault(steps, []).append((trial, loss))
        longest = max((steps for steps, results in by_steps.items() if len(results) >= enough), default=None)
        return sorted(by_steps[longest], key=lambda pair: (pair[1], pair[0].number)) if longest else []


class Bohb(Hyperband):
    """Hyperband with proposals by a tree of Parzen estimators (BOHB)."""

    def _values(self, trials: Sequence[Trial]) -> tuple[dict[str, Any], str]:
        number = len(trials)
        results = self._results(trials, startup(self.task.max_trials))
        if not results or self.task.stream(number, 2).random() < AT_RANDOM:
            return super()._values(trials)
        observations = observed(trials, {trial.number: (loss,) for trial, loss in results})
        return parzen(self.task, observations, number), "tpe"


class HyperbandEvolution(Hyperband):
    """Hyperband with proposals by differential evolution: a good trial plus the difference of two others, crossed with
    a third. Unlike DEHB it has no population per rung, and promotions resume from checkpoints."""

    def _values(self, trials: Sequence[Trial]) -> tuple[dict[str, Any], str]:
        number = len(trials)
        stream = self.task.stream(number, 3)
        results = self._results(trials, max(4, startup(self.task.max_trials)))[:POPULATION]
        if not results or stream.random() < AT_RANDOM:
            return super()._values(trials)
        points = [self.task.units(trial.values) for trial, _ in results]
        target, base, one, other = (points[place] for place in stream.choice(len(points), 4, replace=False))
        forced = int(stream.integers(len(base)))  # at least one gene comes from the mutant
        child = []
        for gene, inherited in enumerate(target):
            moved = base[gene] + SCALE * (one[gene] - other[gene])
            moved = moved if 0 <= moved <= 1 else stream.random()
            child.append(moved if gene == forced or stream.random() < CROSSED else inherited)
        return self.task.at(child), "de"


class Pbt(Searcher):
    """Population-based training: at each rung the worst and the failed trials are replaced by copies of the best with
    other values. A copy starts with its parent's weights at the end of that rung, so parameters that shape the weights
    are kept. The population leaves room for the copies at later rungs."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rungs = [intervals(task.fidelity)]
        copies = 1 + REPLACED * (len(self.rungs[0]) - 1)
        self.size = min(task.max_trials, max(SMALLEST, math.floor(task.max_trials / copies)))

    @property
    def whole_trainings(self) -> float:
        return self.size  # a copy continues in place of a stopped trial

    def next(self, trials: Sequence[Trial]) -> Decision:
        founders = sum(trial.parent is None for trial in trials)
        if founders < self.size and len(trials) < self.task.max_trials:
            return Start(self.task.spread(len(trials)), "spread")
        for rung in range(len(self.rungs[0]) - 1):
            if any(trial.rung <= rung and trial.state == "running" for trial in trials):
                return Wait()
            if decision := self._decision(trials, rung):
                return decision
        return Wait() if any(trial.state == "running" for trial in trials) else Done()

    def _decision(self, trials: Sequence[Trial], rung: int) -> Decision | None:
        """Make copies in place of failed and of the worst members, then prune the worst, and promote the others."""
        reached = self.task.ranked(trials, rung)
        best = max(1, int(len(reached) * REPLACED))
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
        return self.task.space.applicable_values(values)


def intervals(fidelity: Fidelity) -> list[int]:
    """Steps at the ends of rungs of equal length, at least the shortest training, and at most MOST_RUNGS."""
    count = max(1, min(MOST_RUNGS, fidelity.max_steps // fidelity.min_steps))
    return [math.ceil(fidelity.max_steps * (rung + 1) / count) for rung in range(count)]


def _moved(parameter: Parameter, value: Any, unit: float) -> Any:
    """Perturb a value up or down; one of few values moves at least to its neighbour."""
    least = 1 / parameter.count if parameter.count else 0.0
    away = max(MOVED, least) * (2 * unit - 1)
    return parameter.at(parameter.unit(value) + (away if abs(away) >= least else math.copysign(least, away)))
