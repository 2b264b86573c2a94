"""optuna's samplers as functions: the study is made anew from the trials at every call, and lives in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vidqa.contract._optional import require
from vidqa.automl.moves import Values
from vidqa.automl.parameters import Parameter
from vidqa.automl.space import Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

EXTRA = "automl"


@dataclass(frozen=True)
class Seen:
    """Values that a trial has, its losses (less is better) or None while it runs, and what the sampler noted of it."""

    values: Values
    losses: tuple[float, ...] | None
    noted: Mapping[str, Any] = field(default_factory=dict)


def asked(
    space: Space, sampler: str, options: Mapping[str, Any], seen: Sequence[Seen], goals: int, *, whole: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that optuna's sampler of this name proposes after all it has seen, and what it notes of them.

    `whole`: the sampler knows no conditions, so every parameter has a value in every trial, in its middle where it does
    not apply.
    """
    optuna = require("optuna", EXTRA)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: BaseSampler = getattr(optuna.samplers, sampler)(**options)
        study = optuna.create_study(directions=["minimize"] * goals, sampler=made)
        study.add_trials([_frozen(space, each, whole) for each in seen])
        trial = study.ask()
        values: dict[str, Any] = {}
        for each in space.parameters:
            if whole or each.condition is None or each.condition.holds(values):
                values[each.name] = decoded(each, _suggested(trial, each))
        noted = study.trials[-1].system_attrs
    return space.within(values), noted


def distribution(each: Parameter) -> BaseDistribution:
    """Numbers as numbers, options by their index: optuna keeps no lists."""
    kinds = require("optuna.distributions", EXTRA)
    if each.options and each.ordered:
        return kinds.IntDistribution(0, len(each.options) - 1)
    if each.options:
        return kinds.CategoricalDistribution(tuple(range(len(each.options))))
    if each.kind == "float":
        return kinds.FloatDistribution(each.low, each.high, log=each.log, step=each.step)
    assert each.low is not None and each.count is not None
    step = int(each.step or 1)
    high = int(each.high or 0) if each.log else int(each.low) + (each.count - 1) * step
    return kinds.IntDistribution(int(each.low), high, log=each.log, step=step)


def encoded(each: Parameter, value: Any) -> Any:
    """The value for optuna; the nearest one of the search, where someone proposed another."""
    value = each.at(each.unit(value))
    return each.index(value) if each.options else value


def decoded(each: Parameter, value: Any) -> Any:
    if each.options:
        return each.options[value]
    return value if each.kind == "int" or each.step is not None else each.rounded(value)


def _suggested(trial: Any, each: Parameter) -> Any:
    over: Any = distribution(each)
    if each.options and not each.ordered:
        return trial.suggest_categorical(each.name, over.choices)
    suggest = trial.suggest_float if type(over).__name__ == "FloatDistribution" else trial.suggest_int
    return suggest(each.name, over.low, over.high, step=over.step, log=over.log)


def _frozen(space: Space, seen: Seen, whole: bool) -> FrozenTrial:
    optuna = require("optuna", EXTRA)
    over = list(space.parameters) if whole else list(space.active(seen.values))
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING if seen.losses is None else optuna.trial.TrialState.COMPLETE,
        params={each.name: encoded(each, seen.values.get(each.name, each.middle())) for each in over},
        distributions={each.name: distribution(each) for each in over},
        values=seen.losses,
        system_attrs=dict(seen.noted),
    )
