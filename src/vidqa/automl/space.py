"""The search space of a study: the searched keys of a training spec, and their ranges.

`search_space` builds it from the schema and the options --range, --fix and --only. The template is the spec that the
study starts from; trial 0 has its values.
"""

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
    read_value,
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
NONE = "none"  # stands in TOML, which has no null, for a key that is fixed to be unset


@dataclass(frozen=True)
class Space:
    """The searched parameters, and values that all trials share."""

    parameters: tuple[Parameter, ...]  # a parameter comes after those that it depends on
    fixed: Mapping[str, Any] = field(default_factory=dict)  # replace the template's values in every trial
    samples: int | None = None  # of the training set; None: unknown
    ranks: int = 1  # data-parallel
    notes: tuple[str, ...] = ()  # changes to the requested ranges

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def __contains__(self, name: object) -> bool:
        return any(parameter.name == name for parameter in self.parameters)

    def applicable_values(self, values: Values) -> dict[str, Any]:
        """The values of the parameters whose condition holds, in the order of the space."""
        applying: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name in values and parameter.applies(applying):
                applying[parameter.name] = values[parameter.name]
        return applying

    def default(self, spec: TrainSpec) -> dict[str, Any]:
        """The template's values of all applicable parameters; the middle of the range for unset ones."""
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.applies(values):
                value = value_at(spec, parameter.name)
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                has_value = is_number if parameter.ordered else value is not None or parameter.holds(None)
                values[parameter.name] = value if has_value else parameter.middle()
        return values

    def trial_spec(self, spec: TrainSpec, values: Values) -> TrainSpec:
        """The spec of a trial. Raises AUTOML_RANGE for a value that the spec refuses."""
        return _with_values(spec, {**self.fixed, **self.applicable_values(values)})

    def as_searched(self, values: Values) -> dict[str, Any]:
        """Convert values by hand to the search's form: full names of keys, and None as "none" if that is an option."""
        full = _full_names(values)
        names_none = {name for name in full if full[name] is None and name in self and self[name].holds("none")}
        return full | dict.fromkeys(names_none, "none")

    def problems(self, values: Values) -> list[Problem]:
        """AUTOML_RANGE for proposed keys and values outside of the space."""
        problems = []
        for name, value in values.items():
            if name not in self:
                names = ", ".join(parameter.name for parameter in self.parameters)
                problems.append(RANGE.at(name, f"{name} is not searched here", f"use one of {names}"))
            elif not self[name].holds(value):
                message = f"{name} = {brief(value)} is outside of the search"
                problems.append(RANGE.at(name, message, f"use one of {self[name].values_text()}"))
        return problems

    def as_dict(self) -> dict[str, Any]:
        return {
            "parameters": [parameter.as_dict() for parameter in self.parameters],
            "fixed": dict(self.fixed),
            "samples": self.samples,
            "ranks": self.ranks,
        }


def search_space(
    spec: TrainSpec,
    *,
    ranges: Mapping[str, str],
    fixed: Mapping[str, Any],
    only: Sequence[str] = (),
    samples: int | None = None,
    ranks: int = 1,
    by_steps: bool = False,
) -> Space:
    """The search space of the template `spec`: the keys that the schema searches by default, with `ranges` (by key, as
    on the command line) added or replaced, and without the `fixed` keys. With `only`, only these keys are searched.
    `samples` and `ranks` bound the batch. `by_steps`: the study sets the number of steps of a trial, so the epochs are
    not searched. Raises AUTOML_RANGE with all problems of the options."""
    ranges, fixed, only_keys = _full_names(ranges), _full_names(fixed), _full_names(dict.fromkeys(only, ""))
    not_in_only = [
        RANGE.at(f"--range {key}", f"{key} has a range but is not in --only", "add it to --only")
        for key in ranges
        if only_keys and key not in only_keys
    ]
    raise_errors([*_unusable_keys(fixed, "--fix", [*_spec_keys(spec), LEARNING_RATE]), *not_in_only])
    fixed = {key: read_value(key, value) if value == NONE else value for key, value in fixed.items()}
    spec_keys = _spec_keys(_with_values(spec, fixed))
    raise_errors([*_unusable_keys(ranges, "--range", spec_keys), *_unusable_keys(only_keys, "--only", spec_keys)])
    ranges = {**only_keys, **ranges}
    raise_errors(list(_range_conflicts(ranges, fixed)))
    notes: list[str] = []
    for first, second in actions.action(ACTION).exclusive:
        for searched, unset in ((first, second), (second, first)):
            if searched in ranges and value_at(spec, unset) is not None:
                fixed[unset] = None
                notes.append(f"{unset} is unset, as {searched} is searched")
    base = _with_values(spec, fixed)
    default = set() if only_keys else _default_keys(base, by_steps=by_steps)
    keys = [key for key in spec_keys if key in ranges or (key in default and key not in fixed)]
    if LEARNING_RATE in keys and isinstance(base.train.optm_lr, list):
        remedy = "write { decoder = ..., vision = ... }, or fix it"
        raise RANGE.error(LEARNING_RATE, "a list of rates is not searched", remedy)
    parameters = _with_batches(_parameters(keys, ranges, base), base, samples, ranks, notes)
    for parameter in parameters:
        value = value_at(base, parameter.name)
        if parameter.condition is None and value is not None and not parameter.holds(value):
            values = parameter.values_text()
            message = f"the template's {brief(value)} is outside of {values}; only trial 0 has it"
            notes.append(f"{parameter.name}: {message}")
    if not parameters:
        raise RANGE.error("--range", "every key that could be searched is fixed", "fix fewer keys, or add a --range")
    return Space(tuple(_parents_first(parameters)), fixed, samples, ranks, tuple(notes))


def _spec_keys(spec: TrainSpec) -> list[str]:
    """Every key of a spec. A table of learning rates counts as one key per part of the model that it names."""
    rates = spec.train.optm_lr
    parts = [f"{LEARNING_RATE}.{part}" for part in rates] if isinstance(rates, dict) else [LEARNING_RATE]
    return [name for key in leaves(ACTION) for name in (parts if key == LEARNING_RATE else [key])]


def _default_keys(base: TrainSpec, *, by_steps: bool) -> set[str]:
    """The keys that are searched by default (`default` in the schema's x-automl)."""
    keys = {key for key in _spec_keys(base) if declared(key).get("default") and _applies(key, base)}
    return keys - {EPOCHS} if by_steps or base.train.max_num_steps is not None else keys


def _full_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with short names of keys replaced by full ones."""
    shorthand = actions.action(ACTION).shorthand
    return {shorthand.get(key, key): value for key, value in table.items()}


def _unusable_keys(keys: Mapping[str, Any], option: str, spec_keys: Sequence[str]) -> Iterator[Problem]:
    for key in keys:
        if key not in spec_keys:
            is_rate = key.startswith(LEARNING_RATE)
            close = [name for name in spec_keys if name.startswith(LEARNING_RATE)] if is_rate else nearest(ACTION, key)
            remedy = f"did you mean {', '.join(close)}?" if close else None
            yield RANGE.at(f"{option} {key}", f"{key} is not a key of this train spec", remedy)
        elif facts(leaves(ACTION)[schema_key(key)])["x-native"] == "no effect":
            yield RANGE.at(f"{option} {key}", f"{key} has no effect here", "leave it out")


def _range_conflicts(ranges: Mapping[str, str], fixed: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ranges.keys() & fixed.keys():
        yield RANGE.at(f"--range {key}", f"{key} is searched and fixed", "keep --range or --fix")
    for first, second in actions.action(ACTION).exclusive:
        if first in ranges and second in ranges:
            yield RANGE.at(f"--range {first}", f"a spec has {first} or {second}, never both", "search one of them")


def _applies(key: str, spec: TrainSpec) -> bool:
    return not key.startswith(f"{LORA}.") or spec.policy.lora is not None


def _parameters(keys: list[str], ranges: Mapping[str, str], spec: TrainSpec) -> list[Parameter]:
    parameters, problems = [], []
    for key in keys:
        if not _applies(key, spec):
            problems.append(RANGE.at(f"--range {key}", f"{key} means nothing: the template has no {LORA}"))
            continue
        try:
            parameter = read_parameter(key, ranges.get(key, ""), lora=spec.policy.lora is not None)
        except ProblemError as wrong:
            problems += wrong.problems
            continue
        problems += _refused_values(parameter, spec)
        parameters.append(replace(parameter, inherited=bool(declared(key).get("shapes_weights"))))
    raise_errors(problems)
    return [replace(parameter, condition=_condition(parameter.name, parameters, spec)) for parameter in parameters]


def _refused_values(parameter: Parameter, spec: TrainSpec) -> list[Problem]:
    """AUTOML_RANGE for the first value that the spec refuses."""
    for value in parameter.options or (parameter.low, parameter.high):
        try:
            _with_values(spec, {parameter.name: value})
        except ProblemError:
            message = f"{parameter.name} = {brief(value)}: the spec takes {expected(ACTION, parameter.name)}"
            return [RANGE.at(f"--range {parameter.name}", message)]
    return []


def _condition(key: str, parameters: list[Parameter], spec: TrainSpec) -> Condition | None:
    """The condition of a key that has an effect only with some values of another searched key; None if it always has.
    Raises AUTOML_RANGE if it never has."""
    for parent, values in declared(key).get("only_where", {}).items():
        searched = next((parameter for parameter in parameters if parameter.name == parent), None)
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
    """The parameters with a range of the batch per rank whose values are multiples of the micro-batch and at most the
    samples of a rank. Adds its changes to `notes`."""
    by_name = {parameter.name: parameter for parameter in parameters}
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
        notes.append(f"{BATCH} is not searched: {low} is the only possible batch")
        return [parameter for parameter in parameters if parameter.name != BATCH]
    step = micro if batch.log or step % micro else step
    fitted = replace(
        batch, low=int(low), high=int(high), step=None if step == 1 else int(step), log=batch.log and step == 1
    )
    return [fitted if parameter.name == BATCH else parameter for parameter in parameters]


def _parents_first(parameters: list[Parameter]) -> list[Parameter]:
    """The parameters in the order of the spec, except that each comes after those that it depends on."""
    names = [parameter.name for parameter in parameters]

    def parents(parameter: Parameter) -> list[str]:
        on = declared(parameter.name).get("depends_on")
        return [
            parent for parent in (on, parameter.condition.parent if parameter.condition else None) if parent in names
        ]

    ordered: list[Parameter] = []
    while rest := [parameter for parameter in parameters if parameter not in ordered]:
        placed = {parameter.name for parameter in ordered}
        ordered.append(next(parameter for parameter in rest if placed.issuperset(parents(parameter))))
    return ordered


def _with_values(spec: TrainSpec, values: Mapping[str, Any]) -> TrainSpec:
    """The spec with other values. Raises AUTOML_RANGE with one problem for each refused value."""
    inapplicable = [key for key in values if not _applies(key, spec)]
    if inapplicable:
        raise RANGE.error(inapplicable[0], f"{inapplicable[0]} means nothing: the template has no {LORA}")
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
