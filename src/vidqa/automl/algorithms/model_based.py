"""Bayesian optimization: a Gaussian process or a tree of Parzen estimators says where the next trial promises most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from vidqa.automl.algorithms._base import OPEN, Searcher, Task, unseen
from vidqa.automl.algorithms.plain import spread
from vidqa.automl.algorithms.through_optuna import Seen, asked
from vidqa.automl.moves import Done, Move, Start, Trial

MOST_GP = 300  # results; the time of a Gaussian process grows with their third power
POPULATION = 20  # of nsga2, at most


def startup(max_trials: int) -> int:
    """Results that are needed before a model proposes. A quarter of the trials, as fewer say too little of the space,
    and more leave too few for the model: 3 of 10, 5 of 20. More than 10 do not make its first proposals better."""
    return min(10, max(3, max_trials // 4))


class Bayesian(Searcher):
    """Evenly spread trials at first, then a Gaussian process; for very many results a tree of Parzen estimators."""

    def next(self, trials: Sequence[Trial]) -> Move:
        task, number = self.task, len(trials)
        if number >= task.max_trials:
            return Done()
        seen = observed(task, trials)
        if sum(task.last(each) is not None for each in trials) < startup(task.max_trials):
            return Start(unseen(task, spread(task, number), trials), "spread")
        proposer = "gp" if len(seen) <= MOST_GP and find_spec("torch") else "tpe"
        propose = gaussian_process if proposer == "gp" else parzen
        return Start(unseen(task, propose(task, seen, number), trials), proposer)


def observed(task: Task, trials: Iterable[Trial]) -> list[Seen]:
    """Every trial for a model. One that failed counts as bad as the worst: its values are to be kept away from."""
    trials = list(trials)
    known = {each.number: losses for each in trials if (losses := task.last(each)) is not None}
    if not known:
        return []
    worst = tuple(max(losses[place] for losses in known.values()) for place in range(len(task.goals)))
    found = []
    for each in trials:
        if each.state in OPEN:
            found.append(Seen(each.values, None))
        elif each.state != "failed" or each.number in known:
            if each.number in known:
                found.append(Seen(each.values, known[each.number]))
        else:
            found.append(Seen(each.values, worst))
    return found


def gaussian_process(task: Task, seen: Sequence[Seen], number: int) -> dict[str, Any]:
    options = {"seed": _seed(task, number), "n_startup_trials": 1, "warn_independent_sampling": False}
    return asked(task.space, "GPSampler", options, seen, len(task.goals), whole=True)[0]


def parzen(task: Task, seen: Sequence[Seen], number: int) -> dict[str, Any]:
    conditional = any(each.condition for each in task.space.parameters)
    options = {"seed": _seed(task, number), "n_startup_trials": 1, "group": conditional, "constant_liar": True}
    return asked(task.space, "TPESampler", options, seen, len(task.goals), whole=False)[0]


def _seed(task: Task, number: int) -> int:
    return int(task.stream(number).integers(2**31))


class Nsga2(Searcher):
    """Generations of which each is bred from the best of all before, by rank and crowding."""

    def next(self, trials: Sequence[Trial]) -> Move:
        task, number = self.task, len(trials)
        if number >= task.max_trials:
            return Done()
        size = min(POPULATION, max(4, task.max_trials // 5))
        options = {"population_size": size, "seed": _seed(task, number)}
        seen = [
            Seen(each.values, losses, each.extra.get("nsga2", {"NSGAIISampler:generation": 0}))
            for each in trials
            if (losses := task.last(each)) is not None
        ]
        values, noted = asked(task.space, "NSGAIISampler", options, seen, len(task.goals), whole=True)
        if not any(noted.values()):
            values = spread(task, number)  # the first generation
        return Start(unseen(task, values, trials), "nsga2", extra={"nsga2": noted})
