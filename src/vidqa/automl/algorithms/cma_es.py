"""CMA-ES: a normal distribution that moves and stretches towards the better half of each generation.

The strategy's state is made anew from the trials: their extra says to which generation each belongs and, from the
second generation on, which trials the one before was judged by.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from vidqa.contract._optional import require
from vidqa.automl.algorithms._base import OPEN, Searcher, unseen
from vidqa.automl.algorithms.through_optuna import EXTRA
from vidqa.automl.moves import Done, Move, Start, Trial
from vidqa.automl.parameters import Parameter

WIDTH = 1 / 6  # of the first generation, as a share of the range
TRIES = 20  # to draw a point inside of the bounds, before one on them is taken
NOTE = "cma-es"


class CmaEs(Searcher):
    """Numbers by a normal distribution, whole numbers with a margin that keeps them from freezing, names by theirs."""

    def next(self, trials: Sequence[Trial]) -> Move:
        task, number = self.task, len(trials)
        if number >= task.max_trials:
            return Done()
        strategy, generation, judged = self._replayed(trials)
        mine = [each for each in trials if each.extra.get(NOTE, {}).get("generation") == generation]
        ended = [each for each in mine if each.state not in OPEN]
        size = strategy.population_size
        if len(ended) >= size:
            judged = [each.number for each in ended[:size]]
            self._tell(strategy, trials, judged)
            generation, mine = generation + 1, []
        values = self._values(strategy, generation, len(mine))
        note = {"generation": generation, "member": len(mine), "judged": judged}
        return Start(unseen(task, values, trials), NOTE, extra={NOTE: note})

    def _replayed(self, trials: Sequence[Trial]) -> tuple[Any, int, list[int]]:
        """The strategy as it was when the newest generation began, that generation, and by which trials the one before
        was judged."""
        strategy, generation, judged = self._fresh(trials), 0, list[int]()
        for each in trials:
            note = each.extra.get(NOTE)
            if note and note["generation"] > generation:
                generation, judged = note["generation"], note["judged"]
                self._tell(strategy, trials, judged)
        return strategy, generation, judged

    def _tell(self, strategy: Any, trials: Sequence[Trial], judged: Sequence[int]) -> None:
        """Failed trials count as bad as the worst of those judged."""
        losses = {number: self.task.last(trials[number]) for number in judged}
        worst = max((each[0] for each in losses.values() if each), default=0.0)
        told = []
        for number in judged:
            note: Mapping[str, Any] = trials[number].extra[NOTE]
            found = losses[number]
            told.append((self._asked(strategy, note["generation"], note["member"]), found[0] if found else worst))
        with warnings.catch_warnings(), require("numpy", EXTRA).errstate(all="ignore"):
            warnings.simplefilter("ignore")  # it takes a mean of nothing where nothing lies inside of the bounds
            strategy.tell(told)

    def _asked(self, strategy: Any, generation: int, member: int) -> Any:
        strategy.reseed_rng(int(self.task.stream(generation, 100 + member).integers(2**31)))
        solution = strategy.ask()
        for _ in range(TRIES):
            if solution.x is None or all(0 < unit < 1 for unit in solution.x):
                break
            solution = strategy.ask()
        return solution

    def _values(self, strategy: Any, generation: int, member: int) -> dict[str, Any]:
        solution = self._asked(strategy, generation, member)
        values: dict[str, Any] = {}
        for numbers, found in ((self._free, solution.x), (self._stepped, solution.z)):
            for place, each in enumerate(numbers):
                values[each.name] = each.at(float(found[place]))
        for place, each in enumerate(self._named):
            values[each.name] = each.options[int(solution.c[place].argmax())]
        return self.task.space.within(values)

    @cached_property
    def _free(self) -> list[Parameter]:
        return [each for each in self.task.space.parameters if each.count is None]

    @cached_property
    def _stepped(self) -> list[Parameter]:
        return [each for each in self.task.space.parameters if each.ordered and each.count is not None]

    @cached_property
    def _named(self) -> list[Parameter]:
        return [each for each in self.task.space.parameters if not each.ordered]

    def _fresh(self, trials: Sequence[Trial]) -> Any:
        """Around the first trial, if someone else proposed it (the template), else around the middle."""
        cmaes, np = require("cmaes", EXTRA), require("numpy", EXTRA)
        numbers = [*self._free, *self._stepped]
        start = trials[0].values if trials and NOTE not in trials[0].extra else {}
        mean = np.array([each.unit(start[each.name]) if each.name in start else 0.5 for each in numbers])
        most = max((len(each.options) for each in self._named), default=0)
        shares = np.zeros((len(self._named), most))
        for row, each in enumerate(self._named):
            weights = np.array(each.weights or [1.0] * len(each.options)) + 1e-3
            shares[row, : len(weights)] = weights / weights.sum()
        return cmaes.CatCMAwM(
            x_space=[[0.0, 1.0]] * len(self._free) or None,
            z_space=[_places(each) for each in self._stepped] or None,
            c_space=[len(each.options) for each in self._named] or None,
            population_size=max(
                4, min(4 + int(3 * np.log(len(self.task.space.parameters))), self.task.max_trials // 4)
            ),
            mean=mean if numbers else None,
            sigma=1.0 if numbers else None,
            cov=np.diag([WIDTH**2] * len(numbers)) if numbers else None,
            cat_param=shares if self._named else None,
            seed=self.task.seed,
        )


def _places(each: Parameter) -> list[float]:
    """The place in [0, 1] of each value that a parameter in steps may have."""
    assert each.count is not None
    if each.log and not each.options:
        assert each.low is not None
        return [each.unit(each.low + place) for place in range(each.count)]
    return [(place + 0.5) / each.count for place in range(each.count)]
