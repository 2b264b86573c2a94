"""CMA-ES: a normal distribution that moves and stretches towards the better half of each generation.

The strategy's state is made anew from the trials: their extra has the generation of each and, from the second
generation on, the trials by which the one before was judged. optuna's CmaEsSampler would store a pickle of its state,
which anybody could write, and draws names independently.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from vidqa.automl.algorithms._base import EXTRA, Searcher, Task
from vidqa.automl.decisions import Decision, Start, Trial
from vidqa.automl.parameters import Parameter
from vidqa.core._optional import require

WIDTH = 1 / 6  # of the first generation, as a share of the range
TRIES = 20  # to draw a point inside of the bounds, before one on them is taken
NOTE = "cma-es"


class CmaEs(Searcher):
    """Numbers by a normal distribution, whole numbers with a margin that keeps them from freezing, names by theirs."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.free = [one for one in task.space.parameters if one.count is None]
        self.stepped = [one for one in task.space.parameters if one.ordered and one.count is not None]
        self.named = [one for one in task.space.parameters if not one.ordered]

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        strategy, generation, judged = self._replayed(trials)
        members = [trial for trial in trials if trial.extra.get(NOTE, {}).get("generation") == generation]
        ended = [trial.number for trial in members if trial.state != "running"]
        size = strategy.population_size
        if len(ended) >= size:
            judged = ended[:size]
            self._tell(strategy, trials, judged)
            generation, members = generation + 1, []
        values = self._values(strategy, generation, len(members))
        note = {"generation": generation, "member": len(members), "judged": judged}
        return Start(self.task.unseen(values, trials), NOTE, extra={NOTE: note})

    def _replayed(self, trials: Sequence[Trial]) -> tuple[Any, int, list[int]]:
        """The strategy as it was when the newest generation began, that generation, and by which trials the one before
        was judged."""
        strategy, generation, judged = self._fresh(trials), 0, list[int]()
        for trial in trials:
            note = trial.extra.get(NOTE)
            if note and note["generation"] > generation:
                generation, judged = note["generation"], note["judged"]
                self._tell(strategy, trials, judged)
        return strategy, generation, judged

    def _tell(self, strategy: Any, trials: Sequence[Trial], judged: Sequence[int]) -> None:
        """Failed trials count as bad as the worst of those judged."""
        losses = {number: self.task.last(trials[number]) for number in judged}
        worst = max((loss[0] for loss in losses.values() if loss), default=0.0)
        solutions = []
        for number, loss in losses.items():
            note: Mapping[str, Any] = trials[number].extra[NOTE]
            solution = self._solution(strategy, note["generation"], note["member"])
            solutions.append((solution, loss[0] if loss else worst))
        with warnings.catch_warnings(), require("numpy", EXTRA).errstate(all="ignore"):
            warnings.simplefilter("ignore")  # it takes a mean of nothing where nothing lies inside of the bounds
            strategy.tell(solutions)

    def _solution(self, strategy: Any, generation: int, member: int) -> Any:
        strategy.reseed_rng(int(self.task.stream(generation, 100 + member).integers(2**31)))
        solution = strategy.ask()
        for _ in range(TRIES):
            if solution.x is None or all(0 < unit < 1 for unit in solution.x):
                break
            solution = strategy.ask()
        return solution

    def _values(self, strategy: Any, generation: int, member: int) -> dict[str, Any]:
        solution = self._solution(strategy, generation, member)
        values: dict[str, Any] = {}
        for parameters, units in ((self.free, solution.x), (self.stepped, solution.z)):
            for place, parameter in enumerate(parameters):
                values[parameter.name] = parameter.at(float(units[place]))
        for place, parameter in enumerate(self.named):
            values[parameter.name] = parameter.options[int(solution.c[place].argmax())]
        return self.task.space.within(values)

    def _fresh(self, trials: Sequence[Trial]) -> Any:
        """Around the first trial, if someone else proposed it (the template), else around the middle."""
        cmaes, np = require("cmaes", EXTRA), require("numpy", EXTRA)
        numbers = [*self.free, *self.stepped]
        start = trials[0].values if trials and NOTE not in trials[0].extra else {}
        mean = np.array([one.unit(start[one.name]) if one.name in start else 0.5 for one in numbers])
        most = max((len(one.options) for one in self.named), default=0)
        shares = np.zeros((len(self.named), most))
        for row, one in enumerate(self.named):
            weights = np.array(one.weights or [1.0] * len(one.options)) + 1e-3
            shares[row, : len(weights)] = weights / weights.sum()
        return cmaes.CatCMAwM(
            x_space=[[0.0, 1.0]] * len(self.free) or None,
            z_space=[_places(one) for one in self.stepped] or None,
            c_space=[len(one.options) for one in self.named] or None,
            population_size=max(
                4, min(4 + int(3 * np.log(len(self.task.space.parameters))), self.task.max_trials // 4)
            ),
            mean=mean if numbers else None,
            sigma=1.0 if numbers else None,
            cov=np.diag([WIDTH**2] * len(numbers)) if numbers else None,
            cat_param=shares if self.named else None,
            seed=self.task.seed,
        )


def _places(parameter: Parameter) -> list[float]:
    """The position in [0, 1] of each value of a parameter in steps."""
    count, step = parameter.count or 0, parameter.step or 1
    return [parameter.unit(value) for value in parameter.options or [parameter.low + step * at for at in range(count)]]
