"""Algorithms of whole trainings: random draws, the grid, optuna's samplers, and CMA-ES.

Draws and the grid are implemented here: optuna's samplers of these names need a study that stores its draws, choices
instead of ranges for the grid, and have no weights. For its Gaussian process, tree of Parzen estimators and NSGA-II, an
optuna study is rebuilt in memory at every call, so that only the trials need to be stored. The state of CMA-ES is
rebuilt, too: the trials' `extra` has the generation of each and, from the second generation on, the trials that the
previous one was evaluated by. optuna's CmaEsSampler would store a pickle of its state, which anybody could write, and
samples categorical parameters independently.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

from vidqa.automl.algorithms._base import EXTRA, Searcher, Task, spelling
from vidqa.automl.decisions import Decision, Done, Start, Trial, Values, Wait
from vidqa.automl.parameters import Parameter
from vidqa.automl.space import Space
from vidqa.core._optional import require

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

MOST_GP = 300  # most results; the time of a Gaussian process grows with their cube
NSGA_POPULATION = 20  # largest population
CMA_WIDTH = 1 / 6  # standard deviation of the first generation, as a share of the range
CMA_TRIES = 20  # attempts to draw a point inside of the bounds, before it is clipped to them
CMA_ES = "cma-es"  # the proposer, and the key in `extra` of its trials


class RandomSearch(Searcher):
    """Independent random draws."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        return Start(self.task.unseen(self.task.drawn(len(trials)), trials), "random")


class QuasiRandom(Searcher):
    """A scrambled Sobol sequence, which covers the space evenly."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        return Start(self.task.unseen(self.task.spread(len(trials)), trials), "qmc")


class GridSearch(Searcher):
    """All combinations, in random order: an unfinished grid has still covered the whole space."""

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        axes = []
        for count, parameter in zip(grid_counts(self.task), self.task.space.parameters, strict=True):
            steps = [(place + 0.5) / count for place in range(count)]
            axes.append(steps if parameter.count else [place / (count - 1) for place in range(count)])  # with both ends
        unique = {spelling(values): values for values in map(self.task.at, product(*axes))}
        points = list(unique.values())
        return [points[place] for place in self.task.stream(0).permutation(len(points))]

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        tried = {spelling(self.task.space.applicable_values(trial.values)) for trial in trials}
        values = next((values for values in self.points if spelling(values) not in tried), None)
        return Done() if values is None else Start(values, "grid")


def grid_counts(task: Task) -> list[int]:
    """The number of grid values of each parameter: all of a discrete one; of a range so many that the whole grid has
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
    """No proposals: all trials are enqueued by a person or an agent."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        return Wait()


# --- optuna's samplers ----------------------------------------------------------------------------------------------


def startup(max_trials: int) -> int:
    """Results that a model needs before it proposes: a quarter of the trials, 3 of 10, 5 of 20. Fewer say too little
    about the space, more leave too few trials for the model. More than 10 do not improve its first proposals."""
    return min(10, max(3, max_trials // 4))


class Bayesian(Searcher):
    """Quasi-random trials at first, then a Gaussian process; with very many results a tree of Parzen estimators."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        task, number = self.task, len(trials)
        results = {trial.number: losses for trial in trials if (losses := task.last(trial)) is not None}
        if len(results) < startup(task.max_trials):
            return Start(task.unseen(task.spread(number), trials), "spread")
        observations = observed(trials, results)
        proposer = "gp" if len(observations) <= MOST_GP and find_spec("torch") else "tpe"
        propose = gaussian_process if proposer == "gp" else parzen
        return Start(task.unseen(propose(task, observations, number), trials), proposer)


class Nsga2(Searcher):
    """NSGA-II: generations, each bred from the best of all earlier trials, by rank and crowding distance."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        task, number = self.task, len(trials)
        size = min(NSGA_POPULATION, max(4, task.max_trials // 5))
        first = {"NSGAIISampler:generation": 0}
        observations = [
            Observation(trial.values, losses, trial.extra.get("nsga2", first))
            for trial in trials
            if (losses := task.last(trial)) is not None
        ]
        options = {"population_size": size, "seed": _seed(task, number)}
        values, attributes = ask(task.space, "NSGAIISampler", options, observations, len(task.goals), whole=True)
        if not any(attributes.values()):
            values = task.spread(number)  # the first generation
        return Start(task.unseen(values, trials), "nsga2", extra={"nsga2": attributes})


@dataclass(frozen=True)
class Observation:
    """Values of a trial, its losses (None while it runs), and the sampler's attributes for it."""

    values: Values
    losses: tuple[float, ...] | None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def observed(trials: Sequence[Trial], results: Mapping[int, tuple[float, ...]]) -> list[Observation]:
    """The trials as a model's input, with their losses by number. A failed trial gets the worst losses, so that its
    values are avoided."""
    worst = tuple(map(max, zip(*results.values(), strict=True)))
    observations = []
    for trial in trials:
        if trial.number in results or trial.state == "failed":
            observations.append(Observation(trial.values, results.get(trial.number, worst)))
        elif trial.state == "running":
            observations.append(Observation(trial.values, None))
    return observations


def gaussian_process(task: Task, observations: Sequence[Observation], number: int) -> dict[str, Any]:
    options = {"seed": _seed(task, number), "n_startup_trials": 1, "warn_independent_sampling": False}
    return ask(task.space, "GPSampler", options, observations, len(task.goals), whole=True)[0]


def parzen(task: Task, observations: Sequence[Observation], number: int) -> dict[str, Any]:
    has_conditions = any(parameter.condition for parameter in task.space.parameters)
    options = {"seed": _seed(task, number), "n_startup_trials": 1, "group": has_conditions, "constant_liar": True}
    return ask(task.space, "TPESampler", options, observations, len(task.goals), whole=False)[0]


def _seed(task: Task, number: int) -> int:
    return int(task.stream(number).integers(2**31))


def ask(
    space: Space,
    sampler: str,
    options: Mapping[str, Any],
    observations: Sequence[Observation],
    goals: int,
    *,
    whole: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that the named sampler proposes after all observations, and its attributes of the new trial.

    `whole`: the sampler does not support conditions, so every parameter has a value in every trial; the middle, if it
    does not apply.
    """
    optuna = require("optuna", EXTRA)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        instance: BaseSampler = getattr(optuna.samplers, sampler)(**options)
        study = optuna.create_study(directions=["minimize"] * goals, sampler=instance)
        study.add_trials([_frozen(space, observation, whole) for observation in observations])
        trial = study.ask({parameter.name: distribution(parameter) for parameter in space.parameters})
    values = {parameter.name: decoded(parameter, trial.params[parameter.name]) for parameter in space.parameters}
    return space.applicable_values(values), study.trials[-1].system_attrs


def distribution(parameter: Parameter) -> BaseDistribution:
    """The optuna distribution: numbers as numbers, options by their index, because optuna stores no lists."""
    kinds = require("optuna.distributions", EXTRA)
    if parameter.options and parameter.ordered:
        return kinds.IntDistribution(0, len(parameter.options) - 1)
    if parameter.options:
        return kinds.CategoricalDistribution(tuple(range(len(parameter.options))))
    if parameter.kind == "float":
        return kinds.FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    low, step = int(parameter.low), int(parameter.step or 1)
    high = int(parameter.high) if parameter.log else low + ((parameter.count or 1) - 1) * step
    return kinds.IntDistribution(low, high, log=parameter.log, step=step)


def decoded(parameter: Parameter, value: Any) -> Any:
    if parameter.options:
        return parameter.options[value]
    return value if parameter.kind == "int" or parameter.step is not None else parameter.rounded(value)


def _encoded(parameter: Parameter, value: Any) -> Any:
    """The value in optuna's form; a value outside of the search space is replaced by the nearest inside."""
    value = parameter.at(parameter.unit(value))
    return parameter.index(value) if parameter.options else value


def _frozen(space: Space, observation: Observation, whole: bool) -> FrozenTrial:
    optuna = require("optuna", EXTRA)
    parameters = [one for one in space.parameters if whole or one.applies(observation.values)]
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING if observation.losses is None else optuna.trial.TrialState.COMPLETE,
        params={one.name: _encoded(one, observation.values.get(one.name, one.middle())) for one in parameters},
        distributions={one.name: distribution(one) for one in parameters},
        values=observation.losses,
        system_attrs=dict(observation.attributes),
    )


# --- CMA-ES ---------------------------------------------------------------------------------------------------------


class CmaEs(Searcher):
    """CMA-ES: normal distributions of numbers, with margins for integers, and categorical ones of names."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.free = [one for one in task.space.parameters if one.count is None]
        self.stepped = [one for one in task.space.parameters if one.ordered and one.count is not None]
        self.named = [one for one in task.space.parameters if not one.ordered]

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        strategy, generation, judged = self._replayed(trials)
        members = [trial for trial in trials if trial.extra.get(CMA_ES, {}).get("generation") == generation]
        ended = [trial.number for trial in members if trial.state != "running"]
        size = strategy.population_size
        if len(ended) >= size:
            judged = ended[:size]
            self._tell(strategy, trials, judged)
            generation, members = generation + 1, []
        values = self._values(strategy, generation, len(members))
        note = {"generation": generation, "member": len(members), "judged": judged}
        return Start(self.task.unseen(values, trials), CMA_ES, extra={CMA_ES: note})

    def _replayed(self, trials: Sequence[Trial]) -> tuple[Any, int, list[int]]:
        """The optimizer's state at the start of the newest generation, that generation, and the trials by which the
        previous one was evaluated."""
        strategy, generation, judged = self._fresh(trials), 0, list[int]()
        for trial in trials:
            note = trial.extra.get(CMA_ES)
            if note and note["generation"] > generation:
                generation, judged = note["generation"], note["judged"]
                self._tell(strategy, trials, judged)
        return strategy, generation, judged

    def _tell(self, strategy: Any, trials: Sequence[Trial], judged: Sequence[int]) -> None:
        """Pass results to the optimizer. Failed trials get the worst loss of those in `judged`."""
        losses = {number: self.task.last(trials[number]) for number in judged}
        worst = max((loss[0] for loss in losses.values() if loss), default=0.0)
        solutions = []
        for number, loss in losses.items():
            note: Mapping[str, Any] = trials[number].extra[CMA_ES]
            solution = self._solution(strategy, note["generation"], note["member"])
            solutions.append((solution, loss[0] if loss else worst))
        with warnings.catch_warnings(), require("numpy", EXTRA).errstate(all="ignore"):
            warnings.simplefilter("ignore")  # it takes the mean of nothing if no point is inside of the bounds
            strategy.tell(solutions)

    def _solution(self, strategy: Any, generation: int, member: int) -> Any:
        strategy.reseed_rng(int(self.task.stream(generation, 100 + member).integers(2**31)))
        solution = strategy.ask()
        for _ in range(CMA_TRIES):
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
        return self.task.space.applicable_values(values)

    def _fresh(self, trials: Sequence[Trial]) -> Any:
        """A new optimizer around the first trial, if proposed elsewhere (the template), else around the middle."""
        cmaes, np = require("cmaes", EXTRA), require("numpy", EXTRA)
        numbers = [*self.free, *self.stepped]
        start = trials[0].values if trials and CMA_ES not in trials[0].extra else {}
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
            cov=np.diag([CMA_WIDTH**2] * len(numbers)) if numbers else None,
            cat_param=shares if self.named else None,
            seed=self.task.seed,
        )


def _places(parameter: Parameter) -> list[float]:
    """The position in [0, 1] of each value of a discrete parameter."""
    count, step = parameter.count or 0, parameter.step or 1
    return [parameter.unit(value) for value in parameter.options or [parameter.low + step * at for at in range(count)]]
