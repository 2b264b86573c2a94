"""The search space of a train spec: the searched keys, their values, and the template's own values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from vidqa.automl.decisions import Values
from vidqa.automl.parameters import (
    ACTION,
    LEARNING_RATE,
    Condition,
    Parameter,
    declared,
    read_parameter,
    same,
    schema_key,
)
from vidqa.automl.problems import RANGE
from vidqa.core import actions
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.spec.keys import expected, facts, leaves, nearest, value_at, with_values
from vidqa.spec.layers import brief
from vidqa.spec.models import TrainSpec

BATCH, MICRO, EPOCHS = "train.train_batch_per_replica", "train.train_policy.mini_batch", "train.epoch"
LORA = "policy.lora"


@dataclass(frozen=True)
class Space:
    """Searched parameters, parents before their dependents, and `fixed` values that every trial has beside the
    template's. `samples` (None: unknown) train on `ranks` data-parallel ranks."""

    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    ranks: int = 1
    notes: tuple[str, ...] = ()  # changes to the requested ranges

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def __contains__(self, name: object) -> bool:
        return any(parameter.name == name for parameter in self.parameters)

    def active(self, values: Values) -> Iterator[Parameter]:
        """The parameters that apply beside these values."""
        return (parameter for parameter in self.parameters if parameter.applies(values))

    def within(self, values: Values) -> dict[str, Any]:
        """The values of the parameters that apply, in the order of the space."""
        applying: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name in values and parameter.applies(applying):
                applying[parameter.name] = values[parameter.name]
        return applying

    def default(self, spec: TrainSpec) -> dict[str, Any]:
        """The template's own values; the middle of the range where it has none."""
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.applies(values):
                value = value_at(spec, parameter.name)
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                has_value = is_number if parameter.ordered else value is not None or parameter.holds(None)
                values[parameter.name] = value if has_value else parameter.middle()
        return values

    def applied(self, spec: TrainSpec, values: Values) -> TrainSpec:
        """The spec of a trial. Raises AUTOML_RANGE for a value that the spec refuses."""
        return _with(spec, {**self.fixed, **self.within(values)})

    def problems(self, values: Values) -> list[Problem]:
        """AUTOML_RANGE for proposed keys and values outside of the space."""
        problems = []
        for name, value in values.items():
            if name not in self:
                names = ", ".join(parameter.name for parameter in self.parameters)
                problems.append(RANGE.at(name, f"{name} is not searched here", f"use one of {names}"))
            elif not self[name].holds(value):
                message = f"{name} = {brief(value)} is outside of the search"
                problems.append(RANGE.at(name, message, f"use one of {self[name].words()}"))
        return problems

    def as_dict(self) -> dict[str, Any]:
        return {
            "parameters": [parameter.as_dict() for parameter in self.parameters],
            "fixed": dict(self.fixed),
            "samples": self.samples,
            "ranks": self.ranks,
        }


def space_of(
    spec: TrainSpec,
    *,
    ranges: Mapping[str, str],
    fixed: Mapping[str, Any],
    only: Sequence[str] = (),
    samples: int | None = None,
    ranks: int = 1,
    by_steps: bool = False,
) -> Space:
    """The schema's own search, with the ranges that a user adds or changes and without the fixed keys. With `only`,
    these keys alone are searched.

    `by_steps`: the study sets the number of steps of a trial, so the epochs are not searched. Raises ProblemError with
    every AUTOML_ problem.
    """
    ranges, fixed, only_keys = _full_names(ranges), _full_names(fixed), _full_names(dict.fromkeys(only, ""))
    outside = [
        RANGE.at(f"--range {key}", f"{key} has a range and is not among --only", "name it in --only, too")
        for key in ranges
        if only_keys and key not in only_keys
    ]
    raise_errors([*_unknown(fixed, "--fix", [*_keys(spec), LEARNING_RATE]), *outside])
    spec_keys = _keys(_with(spec, fixed))
    raise_errors([*_unknown(ranges, "--range", spec_keys), *_unknown(only_keys, "--only", spec_keys)])
    ranges = {**only_keys, **ranges}
    raise_errors(list(_clashes(ranges, fixed)))
    notes: list[str] = []
    for first, second in actions.action(ACTION).exclusive:
        for searched, unset in ((first, second), (second, first)):
            if searched in ranges and value_at(spec, unset) is not None:
                fixed[unset] = None
                notes.append(f"{unset} is unset, as {searched} is searched")
    base = _with(spec, fixed)
    default = set() if only_keys else _default_keys(base, by_steps=by_steps)
    keys = [key for key in spec_keys if key in ranges or (key in default and key not in fixed)]
    if LEARNING_RATE in keys and isinstance(base.train.optm_lr, list):
        remedy = "write { decoder = ..., vision = ... }, or fix it"
        raise RANGE.error(LEARNING_RATE, "a list of rates is not searched", remedy)
    parameters = _with_batches(_parameters(keys, ranges, base), base, samples, ranks, notes)
    for one in parameters:
        value = value_at(base, one.name)
        if one.condition is None and value is not None and not one.holds(value):
            notes.append(
                f"{one.name}: the template's own {brief(value)} is outside of {one.words()}; trial 0 alone has it"
            )
    if not parameters:
        raise RANGE.error("--range", "every key that could be searched is fixed", "fix fewer keys, or add a --range")
    return Space(tuple(_parents_first(parameters)), fixed, samples, ranks, tuple(notes))


def _keys(spec: TrainSpec) -> list[str]:
    """Every key of a spec; where parts of the model have learning rates of their own, these in place of the one."""
    rates = spec.train.optm_lr
    parts = [f"{LEARNING_RATE}.{part}" for part in rates] if isinstance(rates, dict) else [LEARNING_RATE]
    return [name for key in leaves(ACTION) for name in (parts if key == LEARNING_RATE else [key])]


def _default_keys(base: TrainSpec, *, by_steps: bool) -> set[str]:
    """The keys that the schema searches by itself."""
    keys = {key for key in _keys(base) if declared(key).get("default") and _applies(key, base)}
    return keys - {EPOCHS} if by_steps or base.train.max_num_steps is not None else keys


def _full_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """By the keys' own names, where shorthands were used."""
    shorthand = actions.action(ACTION).shorthand
    return {shorthand.get(key, key): value for key, value in table.items()}


def _unknown(keys: Mapping[str, Any], option: str, spec_keys: Sequence[str]) -> Iterator[Problem]:
    for key in keys:
        if key not in spec_keys:
            is_rate = key.startswith(LEARNING_RATE)
            close = [name for name in spec_keys if name.startswith(LEARNING_RATE)] if is_rate else nearest(ACTION, key)
            remedy = f"did you mean {', '.join(close)}?" if close else None
            yield RANGE.at(f"{option} {key}", f"{key} is not a key of this train spec", remedy)
        elif facts(leaves(ACTION)[schema_key(key)])["x-native"] == "no effect":
            yield RANGE.at(f"{option} {key}", f"{key} changes nothing here", "leave it out")


def _clashes(ranges: Mapping[str, str], fixed: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ranges.keys() & fixed.keys():
        yield RANGE.at(f"--range {key}", f"{key} is searched and fixed", "keep --range or --fix")
    for one, other in actions.action(ACTION).exclusive:
        if one in ranges and other in ranges:
            yield RANGE.at(f"--range {one}", f"a spec holds {one} or {other}, never both", "search one of them")


def _applies(key: str, spec: TrainSpec) -> bool:
    return not key.startswith(f"{LORA}.") or spec.policy.lora is not None


def _parameters(keys: list[str], ranges: Mapping[str, str], spec: TrainSpec) -> list[Parameter]:
    parameters, problems = [], []
    for key in keys:
        if not _applies(key, spec):
            problems.append(RANGE.at(f"--range {key}", f"{key} means nothing: the template has no {LORA}"))
            continue
        try:
            one = read_parameter(key, ranges.get(key, ""), lora=spec.policy.lora is not None)
        except ProblemError as wrong:
            problems += wrong.problems
            continue
        problems += _refused_values(one, spec)
        parameters.append(replace(one, inherited=bool(declared(key).get("shapes_weights"))))
    raise_errors(problems)
    return [replace(one, condition=_condition(one.name, parameters, spec)) for one in parameters]


def _refused_values(one: Parameter, spec: TrainSpec) -> list[Problem]:
    """AUTOML_RANGE for the first value that the spec refuses."""
    for value in one.options or (one.low, one.high):
        try:
            _with(spec, {one.name: value})
        except ProblemError:
            message = f"{one.name} = {brief(value)}: the spec takes {expected(ACTION, one.name)}"
            return [RANGE.at(f"--range {one.name}", message)]
    return []


def _condition(key: str, parameters: list[Parameter], spec: TrainSpec) -> Condition | None:
    """Where a key has a meaning only beside some values of another searched key."""
    for parent, values in declared(key).get("only_where", {}).items():
        searched = next((one for one in parameters if one.name == parent), None)
        if searched is not None:
            matching = tuple(option for option in searched.options if option in values)
            if matching and len(matching) < len(searched.options):
                return Condition(parent, matching)
        else:
            matching = tuple(value for value in values if same(value, value_at(spec, parent)))
        if not matching:
            raise RANGE.error(f"--range {key}", f"{key} means nothing unless {parent} is one of {brief(values)}")
    return None


def _with_batches(
    parameters: list[Parameter], spec: TrainSpec, samples: int | None, ranks: int, notes: list[str]
) -> list[Parameter]:
    """Batches per rank are multiples of the micro-batch and at most the samples of a rank."""
    by_name = {one.name: one for one in parameters}
    batch = by_name.get(BATCH)
    if batch is None or batch.options:
        return parameters
    micro = 1 if MICRO in by_name else spec.train.train_policy.mini_batch
    step = batch.step or micro
    most = batch.high if samples is None else min(batch.high, samples // ranks)
    low, high = -(-batch.low // micro) * micro, most // micro * micro
    if low > high:
        message = f"no batch from {batch.low:g} to {most:g} is a multiple of mini_batch {micro}"
        raise RANGE.error(f"--range {BATCH}", message, "lower mini_batch, or fix the batch")
    if most < batch.high:
        notes.append(f"{BATCH} ends at {high}, not at {batch.high}: {samples} samples on {ranks} ranks")
    if low == high:
        notes.append(f"{BATCH} is not searched: {low} is the only batch that is possible")
        return [one for one in parameters if one.name != BATCH]
    step = micro if batch.log or step % micro else step
    fitted = replace(
        batch, low=int(low), high=int(high), step=None if step == 1 else int(step), log=batch.log and step == 1
    )
    return [fitted if one.name == BATCH else one for one in parameters]


def _parents_first(parameters: list[Parameter]) -> list[Parameter]:
    """In the order of the spec, but each after the parameters that it depends on."""
    names = [one.name for one in parameters]

    def parents(one: Parameter) -> list[str]:
        on = declared(one.name).get("depends_on")
        return [parent for parent in (on, one.condition.parent if one.condition else None) if parent in names]

    ordered: list[Parameter] = []
    while rest := [one for one in parameters if one not in ordered]:
        placed = {one.name for one in ordered}
        ordered.append(next(one for one in rest if placed.issuperset(parents(one))))
    return ordered


def _with(spec: TrainSpec, values: Mapping[str, Any]) -> TrainSpec:
    """The spec with other values. Raises AUTOML_RANGE with one problem for each refused value."""
    lost = [key for key in values if not _applies(key, spec)]
    if lost:
        raise RANGE.error(lost[0], f"{lost[0]} means nothing: the template has no {LORA}")
    try:
        return with_values(spec, values)
    except ValidationError as invalid:
        raise ProblemError(list(_refused(spec, values))) from invalid


def _refused(spec: TrainSpec, values: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in values.items():
        try:
            with_values(spec, {key: value})
        except ValidationError:
            allowed = expected(ACTION, key)
            yield RANGE.at(key, f"{key} must be {allowed}; got {brief(value)}", f"set it to {allowed}")
