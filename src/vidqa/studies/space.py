"""The search space of a train spec: which keys are searched, over which values, and what the template has there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from vidqa import actions
from vidqa.contract.problem import Problem, ProblemError, raise_errors
from vidqa.spec.json_schema import expected
from vidqa.spec.keys import leaves, nearest, value_at, with_values
from vidqa.spec.layers import brief
from vidqa.spec.models import TrainSpec
from vidqa.spec.native_support import facts
from vidqa.studies.moves import Values
from vidqa.studies.parameters import Condition, Parameter, same
from vidqa.studies.ranges import ACTION, declared, parameter
from vidqa.studies.space_problems import EMPTY, EXCLUSIVE, RANGE, UNKNOWN_KEY, VALUE

BATCH, MICRO, EPOCHS = "train.train_batch_per_replica", "train.train_policy.mini_batch", "train.epoch"
LORA = "policy.lora"


@dataclass(frozen=True)
class Space:
    """What is searched, parents before what depends on them, and what every trial has in common: `fixed` values
    beside the template's. `samples` train (None: not known) on `ranks` data-parallel ranks."""

    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    ranks: int = 1
    notes: tuple[str, ...] = ()  # what was made of the ranges that were asked for

    def __getitem__(self, name: str) -> Parameter:
        return next(each for each in self.parameters if each.name == name)

    def __contains__(self, name: object) -> bool:
        return any(each.name == name for each in self.parameters)

    def active(self, values: Values) -> Iterator[Parameter]:
        """The parameters that apply beside these values."""
        for each in self.parameters:
            if each.condition is None or each.condition.holds(values):
                yield each

    def within(self, values: Values) -> dict[str, Any]:
        """The values of the parameters that apply, in the order of the space."""
        kept: dict[str, Any] = {}
        for each in self.parameters:
            if each.name in values and (each.condition is None or each.condition.holds(kept)):
                kept[each.name] = values[each.name]
        return kept

    def default(self, spec: TrainSpec) -> dict[str, Any]:
        """The template's own values; the middle of the range where it has none."""
        values: dict[str, Any] = {}
        for each in self.parameters:
            if each.condition is None or each.condition.holds(values):
                value = value_at(spec, each.name)
                number = isinstance(value, int | float) and not isinstance(value, bool)
                known = number if each.ordered else value is not None or each.holds(None)
                values[each.name] = value if known else each.middle()
        return values

    def applied(self, spec: TrainSpec, values: Values) -> TrainSpec:
        """The spec of a trial. Raises AUTOML_VALUE where a value is none that the spec takes."""
        return _with(spec, {**self.fixed, **self.within(values)})

    def problems(self, values: Values) -> list[Problem]:
        """AUTOML_UNKNOWN_KEY and AUTOML_VALUE for what someone proposes and the search would not."""
        found = []
        for name, value in values.items():
            if name not in self:
                known = ", ".join(each.name for each in self.parameters)
                found.append(UNKNOWN_KEY.at(name, f"{name} is not searched here", f"use one of {known}"))
            elif not self[name].holds(value):
                message = f"{name} = {brief(value)} is outside of the search"
                found.append(VALUE.at(name, message, f"use one of {self[name].words()}"))
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "parameters": [each.as_dict() for each in self.parameters],
            "fixed": dict(self.fixed),
            "samples": self.samples,
            "ranks": self.ranks,
        }

    def fingerprint(self) -> str:
        """sha256 of the canonical JSON of `as_dict`: another space has another one."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


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
    """The schema's own search, with the ranges that a user adds or changes and without the keys that are fixed. With
    `only`, these keys alone are searched.

    `by_steps`: the study says how many steps a trial trains, so the epochs are not searched. Raises ProblemError with
    every AUTOML_ problem.
    """
    asked, kept, alone = _named(ranges), _named(fixed), _named(dict.fromkeys(only, ""))
    unknown = [*_unknown(asked, "--range"), *_unknown(kept, "--fix"), *_unknown(alone, "--only")]
    raise_errors([*unknown, *_outside(asked, alone)])
    asked = {**alone, **asked}
    raise_errors(list(_clashes(asked, kept)))
    notes: list[str] = []
    for one, other in actions.action(ACTION).exclusive:
        for searched, left in ((one, other), (other, one)):
            if searched in asked and value_at(spec, left) is not None:
                kept[left] = None
                notes.append(f"{left} is unset, as {searched} is searched")
    base = _with(spec, kept)
    default = [key for key in leaves(ACTION) if declared(key).get("default") and _applies(key, base, kept)]
    if alone:
        default = []
    if by_steps or spec.train.max_num_steps is not None:
        default = [key for key in default if key != EPOCHS]
    keys = [key for key in leaves(ACTION) if key in asked or (key in default and key not in kept)]
    found = _parameters(keys, asked, base)
    found = _with_batches(found, base, samples, ranks, notes)
    notes += _without_template(found, base)
    if not found:
        raise EMPTY.error("--range", "every key that could be searched is fixed")
    return Space(tuple(_parents_first(found)), kept, samples, ranks, tuple(notes))


def _outside(asked: Mapping[str, str], alone: Mapping[str, str]) -> Iterator[Problem]:
    for key in asked.keys() - alone.keys() if alone else ():
        yield EXCLUSIVE.at(f"--range {key}", f"{key} has a range and is not among --only", "name it in --only, too")


def _without_template(found: Sequence[Parameter], spec: TrainSpec) -> Iterator[str]:
    """The ranges that leave the template's own value out: trial 0 has it, and no other trial."""
    for each in found:
        value = value_at(spec, each.name)
        if each.condition is None and value is not None and not each.holds(value):
            yield f"{each.name}: the template's own {brief(value)} is outside of {each.words()}; trial 0 alone has it"


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """By the keys' own names, where shorthands were used."""
    shorthand = actions.action(ACTION).shorthand
    return {shorthand.get(key, key): value for key, value in given.items()}


def _unknown(keys: Mapping[str, Any], option: str) -> Iterator[Problem]:
    for key in keys:
        if key not in leaves(ACTION):
            close = nearest(ACTION, key)
            remedy = f"did you mean {', '.join(close)}?" if close else None
            yield UNKNOWN_KEY.at(f"{option} {key}", f"{key} is not a key of a train spec", remedy)
        elif facts(leaves(ACTION)[key])["x-native"] == "no effect":
            yield RANGE.at(f"{option} {key}", f"{key} changes nothing here", "leave it out")


def _clashes(asked: Mapping[str, str], kept: Mapping[str, Any]) -> Iterator[Problem]:
    for key in asked.keys() & kept.keys():
        yield EXCLUSIVE.at(f"--range {key}", f"{key} is searched and fixed", "keep --range or --fix")
    for one, other in actions.action(ACTION).exclusive:
        if one in asked and other in asked:
            yield EXCLUSIVE.at(f"--range {one}", f"a spec holds {one} or {other}, never both", "search one of them")


def _applies(key: str, spec: TrainSpec, kept: Mapping[str, Any]) -> bool:
    return not key.startswith(f"{LORA}.") or spec.policy.lora is not None


def _parameters(keys: list[str], asked: Mapping[str, str], spec: TrainSpec) -> list[Parameter]:
    found, problems = [], []
    for key in keys:
        if not _applies(key, spec, {}):
            problems.append(RANGE.at(f"--range {key}", f"{key} means nothing: the template has no {LORA}"))
            continue
        try:
            made = parameter(key, asked.get(key, ""), lora=spec.policy.lora is not None)
        except ProblemError as wrong:
            problems += wrong.problems
            continue
        problems += _untaken(made, spec)
        found.append(replace(made, inherited=bool(declared(key).get("shapes_weights"))))
    raise_errors(problems)
    conditions = {each.name: _condition(each.name, found, spec) for each in found}
    return [replace(each, condition=conditions[each.name]) for each in found]


def _untaken(made: Parameter, spec: TrainSpec) -> list[Problem]:
    """AUTOML_RANGE for the first value that the spec would refuse."""
    for value in made.options or (made.low, made.high):
        try:
            _with(spec, {made.name: value})
        except ProblemError:
            message = f"{made.name} = {brief(value)}: the spec takes {expected(ACTION, made.name)}"
            return [RANGE.at(f"--range {made.name}", message)]
    return []


def _condition(key: str, found: list[Parameter], spec: TrainSpec) -> Condition | None:
    """Where a key means something only beside some values of another one that is searched, too."""
    for parent, values in declared(key).get("only_where", {}).items():
        searched = next((each for each in found if each.name == parent), None)
        if searched is not None:
            kept = tuple(option for option in searched.options if option in values)
            if kept and len(kept) < len(searched.options):
                return Condition(parent, kept)
            has = kept
        else:
            has = tuple(value for value in values if same(value, value_at(spec, parent)))
        if not has:
            raise RANGE.error(f"--range {key}", f"{key} means nothing unless {parent} is one of {brief(values)}")
    return None


def _with_batches(
    found: list[Parameter], spec: TrainSpec, samples: int | None, ranks: int, notes: list[str]
) -> list[Parameter]:
    """Batches per rank are multiples of the micro-batch and at most the samples of a rank."""
    searched = {each.name: each for each in found}
    batch = searched.get(BATCH)
    if batch is None or batch.options:
        return found
    assert batch.low is not None and batch.high is not None
    micro = 1 if MICRO in searched else spec.train.train_policy.mini_batch
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
        return [each for each in found if each.name != BATCH]
    step = micro if batch.log or step % micro else step
    made = replace(
        batch, low=int(low), high=int(high), step=None if step == 1 else int(step), log=batch.log and step == 1
    )
    return [made if each.name == BATCH else each for each in found]


def _parents_first(found: list[Parameter]) -> list[Parameter]:
    """In the order of the spec, but what a key depends on stands before it."""
    names = [each.name for each in found]

    def parents(each: Parameter) -> list[str]:
        on = declared(each.name).get("depends_on")
        return [parent for parent in (on, each.condition.parent if each.condition else None) if parent in names]

    ordered: list[Parameter] = []
    while left := [each for each in found if each not in ordered]:
        done = {each.name for each in ordered}
        ordered.append(next(each for each in left if done.issuperset(parents(each))))
    return ordered


def _with(spec: TrainSpec, values: Mapping[str, Any]) -> TrainSpec:
    """The spec with other values. Raises AUTOML_VALUE with one problem for each that it does not take."""
    lost = [key for key in values if key.startswith(f"{LORA}.") and spec.policy.lora is None]
    if lost:
        raise VALUE.error(lost[0], f"{lost[0]} means nothing: the template has no {LORA}")
    try:
        return with_values(spec, values)
    except ValidationError as invalid:
        raise ProblemError(list(_refused(spec, values))) from invalid


def _refused(spec: TrainSpec, values: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in values.items():
        try:
            with_values(spec, {key: value})
        except ValidationError:
            wanted = expected(ACTION, key)
            yield VALUE.at(key, f"{key} must be {wanted}; got {brief(value)}", f"set it to {wanted}")
