"""Proposed values made to fit the rules of a spec, with a note for every change.

Values proposed key by key can break rules over several keys. Where a change of these values alone mends that, the trial
is trained with the changed ones, and its record has the notes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vidqa.automl.decisions import Values
from vidqa.automl.problems import RANGE
from vidqa.automl.space import BATCH, EPOCHS, MICRO, Space
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec import DataFacts, check, check_with_data
from vidqa.spec.keys import value_at
from vidqa.spec.layers import brief
from vidqa.spec.models import TrainSpec
from vidqa.spec.train_rules import VISION_TARGETS

WARMUP_EPOCHS = "train.optm_warmup_epochs"
TARGETS, SAVED = "policy.lora.target_modules", "policy.lora.modules_to_save"
Change = tuple[str, Any, str]  # the key, its new value, why


def repaired(space: Space, spec: TrainSpec, values: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values that apply and keep the rules, and notes of the changes. A key without a proposal gets the template's
    value.

    Raises AUTOML_RANGE for a value that the spec refuses, and for a rule that stays broken.
    """
    complete, notes = _complete(space, spec, values)
    for rule in RULES:
        if change := rule(space, spec, complete):
            key, value, why = change
            notes.append(f"{key} = {brief(complete[key])} became {brief(value)}: {why}")
            complete[key] = value
    complete = space.within(complete)
    broken = _broken(space, spec, space.applied(spec, complete))
    if broken:
        problems = [RANGE.at(rule.where, f"{rule.code}: {rule.message}", rule.remedy) for rule in broken]
        raise ProblemError(problems)
    return complete, tuple(notes)


def _complete(space: Space, spec: TrainSpec, values: Values) -> tuple[dict[str, Any], list[str]]:
    default = space.default(spec)
    complete: dict[str, Any] = {}
    notes = []
    for parameter in space.parameters:
        name, condition = parameter.name, parameter.condition
        if not parameter.applies(complete):
            if name in values and condition:
                notes.append(f"{name} was dropped: {condition.parent} is {brief(complete.get(condition.parent))}")
        elif name in values:
            complete[name] = values[name]
        else:
            complete[name] = default.get(name, parameter.middle())
            notes.append(f"{name} was not proposed: {brief(complete[name])}")
    return complete, notes


def _value(key: str, space: Space, spec: TrainSpec, values: Values) -> Any:
    return values[key] if key in values else space.fixed.get(key, value_at(spec, key))


def _batch(space: Space, spec: TrainSpec, values: Values) -> Change | None:
    """A multiple of the micro-batch, and no more than a rank has samples."""
    batch, micro = (_value(key, space, spec, values) for key in (BATCH, MICRO))
    most = batch if space.samples is None else min(batch, space.samples // space.ranks)
    fitting = most // micro * micro
    if BATCH in values and fitting and fitting != batch:
        return BATCH, fitting, f"a multiple of mini_batch {micro}" if most == batch else f"a rank has {most} samples"
    if MICRO in values and most % micro:
        fitting = max(size for size in range(1, most + 1) if most % size == 0 and size <= micro)
        return MICRO, fitting, f"the batch per rank is {most}"
    return None


def _warmup(space: Space, spec: TrainSpec, values: Values) -> Change | None:
    """Shorter than the training."""
    warmup, epochs = (_value(key, space, spec, values) for key in (WARMUP_EPOCHS, EPOCHS))
    if WARMUP_EPOCHS in values and warmup is not None and warmup >= epochs:
        return WARMUP_EPOCHS, epochs / 2, f"the training has {epochs} epochs"
    return None


def _targets(space: Space, spec: TrainSpec, values: Values) -> Change | None:
    """No module both has an adapter and trains in full."""
    if spec.policy.lora is None or not {TARGETS, SAVED} & values.keys():
        return None
    targets, saved = (_value(key, space, spec, values) for key in (TARGETS, SAVED))
    if not saved:
        return None
    full = {*saved, *VISION_TARGETS} if any("visual" in name for name in saved) else set(saved)
    clash = full & ({targets} if isinstance(targets, str) else set(targets))
    if not clash:
        return None
    why = f"{', '.join(sorted(clash))} would have adapters and train in full"
    rest = [name for name in targets if name not in clash] if isinstance(targets, list) else []
    if TARGETS in values and rest:
        return TARGETS, rest, why
    return (SAVED, None, why) if SAVED in values else None


RULES: tuple[Callable[[Space, TrainSpec, Values], Change | None], ...] = (_batch, _warmup, _targets)


def _broken(space: Space, template: TrainSpec, trial: TrainSpec) -> list[Problem]:
    """The errors of a trial's spec that the template itself does not have."""

    def errors(spec: TrainSpec) -> list[Problem]:
        problems = check(spec) if space.samples is None else check_with_data(spec, DataFacts(space.samples, 1))
        return [problem for problem in problems if problem.severity == "error"]

    accepted = {(problem.code, problem.where) for problem in errors(template)}
    return [problem for problem in errors(trial) if (problem.code, problem.where) not in accepted]
