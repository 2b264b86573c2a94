"""optuna's samplers as functions of the trials: Gaussian process, tree of Parzen estimators, NSGA-II.

The optuna study is made anew in memory at every call, so that nothing but the trials is to be stored.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vidqa.automl.algorithms._base import EXTRA, Searcher, Task
from vidqa.automl.decisions import Decision, Start, Trial, Values
from vidqa.automl.parameters import Parameter
from vidqa.automl.space import Space
from vidqa.core._optional import require

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

MOST_GP = 300  # results; the time of a Gaussian process grows with their third power
POPULATION = 20  # of nsga2, at most


def startup(max_trials: int) -> int:
    """Results that a model needs before it proposes. A quarter of the trials: fewer say too little of the space, more
    leave too few for the model; 3 of 10, 5 of 20. More than 10 do not make its first proposals better."""
    return min(10, max(3, max_trials // 4))


class Bayesian(Searcher):
    """Evenly spread trials at first, then a Gaussian process; for very many results a tree of Parzen estimators."""

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
    """Generations, each bred from the best of all before, by rank and crowding."""

    def proposal(self, trials: Sequence[Trial]) -> Decision:
        task, number = self.task, len(trials)
        size = min(POPULATION, max(4, task.max_trials // 5))
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
    """Values of a trial, its losses (less is better; None while it runs), and the sampler's attributes of it."""

    values: Values
    losses: tuple[float, ...] | None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def observed(trials: Sequence[Trial], results: Mapping[int, tuple[float, ...]]) -> list[Observation]:
    """The trials for a model, with their losses by number. One that failed counts as bad as the worst, so that its
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
    """The values that the sampler of this name proposes after all observations, and its attributes of the new trial.

    `whole`: the sampler knows no conditions, so every parameter has a value in every trial, in its middle where it does
    not apply.
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
    return space.within(values), study.trials[-1].system_attrs


def distribution(parameter: Parameter) -> BaseDistribution:
    """Numbers as numbers, options by their index: optuna stores no lists."""
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
    """The value for optuna; the nearest one of the search for a value outside of it."""
    value = parameter.at(parameter.unit(value))
    return parameter.index(value) if parameter.options else value


def _frozen(space: Space, observation: Observation, whole: bool) -> FrozenTrial:
    optuna = require("optuna", EXTRA)
    parameters = list(space.parameters) if whole else list(space.active(observation.values))
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING if observation.losses is None else optuna.trial.TrialState.COMPLETE,
        params={one.name: _encoded(one, observation.values.get(one.name, one.middle())) for one in parameters},
        distributions={one.name: distribution(one) for one in parameters},
        values=observation.losses,
        system_attrs=dict(observation.attributes),
    )
