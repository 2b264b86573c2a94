"""Proposed values made to fit the rules of a spec, with a note for everything that was changed.

What a search proposes key by key can break rules that look at several keys. Where a change of the proposed values
alone mends that, the trial is trained with the changed ones, and its record says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vidqa.contract.problem import Problem, ProblemError
from vidqa.spec import DataFacts, check, check_with_data
from vidqa.spec.keys import value_at
from vidqa.spec.layers import brief
from vidqa.spec.models import TrainSpec
from vidqa.spec.rules import VISION_TARGETS
from vidqa.automl.moves import Values
from vidqa.automl.space import BATCH, EPOCHS, MICRO, Space
from vidqa.automl.space_problems import UNREPAIRED

WARMUP_EPOCHS = "train.optm_warmup_epochs"
TARGETS, SAVED = "policy.lora.target_modules", "policy.lora.modules_to_save"
Change = tuple[str, Any, str]  # the key, its new value, why


def repaired(space: Space, spec: TrainSpec, values: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values that apply and keep the rules, and what was changed. A key that is not proposed gets the template's value.

    Raises AUTOML_VALUE for a value that the spec does not take, AUTOML_UNREPAIRED for a rule that stays broken.
    """
    found, notes = _complete(space, spec, values)
    for rule in RULES:
        for key, value, why in rule(space, spec, found):
            notes.append(f"{key} = {brief(found[key])} became {brief(value)}: {why}")
            found[key] = value
    found = space.within(found)
    broken = _broken(space, spec, space.applied(spec, found))
    if broken:
        raise ProblemError([UNREPAIRED.at(each.where, f"{each.code}: {each.message}", each.remedy) for each in broken])
    return found, tuple(notes)


def _complete(space: Space, spec: TrainSpec, values: Values) -> tuple[dict[str, Any], list[str]]:
    default = space.default(spec)
    found: dict[str, Any] = {}
    notes = []
    for each in space.parameters:
        applies = each.condition is None or each.condition.holds(found)
        if not applies and each.name in values:
            assert each.condition is not None
            notes.append(
                f"{each.name} was dropped: {each.condition.parent} is {brief(found.get(each.condition.parent))}"
            )
        if applies and each.name in values:
            found[each.name] = values[each.name]
        elif applies:
            found[each.name] = default.get(each.name, each.middle())
            notes.append(f"{each.name} was not proposed: {brief(found[each.name])}")
    return found, notes


def _value(key: str, space: Space, spec: TrainSpec, values: Values) -> Any:
    return values[key] if key in values else space.fixed.get(key, value_at(spec, key))


def _batch(space: Space, spec: TrainSpec, values: Values) -> list[Change]:
    """A multiple of the micro-batch, and no more than a rank has samples."""
    batch, micro = (_value(key, space, spec, values) for key in (BATCH, MICRO))
    most = batch if space.samples is None else min(batch, space.samples // space.ranks)
    fitting = most // micro * micro
    if BATCH in values and fitting and fitting != batch:
        why = f"a multiple of mini_batch {micro}" if most == batch else f"a rank has {most} samples"
        return [(BATCH, fitting, why)]
    if MICRO in values and most % micro:
        fitting = max(each for each in range(1, most + 1) if most % each == 0 and each <= micro)
        return [(MICRO, fitting, f"the batch per rank is {most}")]
    return []


def _warmup(space: Space, spec: TrainSpec, values: Values) -> list[Change]:
    """Shorter than the training."""
    asked, epochs = (_value(key, space, spec, values) for key in (WARMUP_EPOCHS, EPOCHS))
    if WARMUP_EPOCHS in values and asked is not None and asked >= epochs:
        return [(WARMUP_EPOCHS, epochs / 2, f"the training has {epochs} epochs")]
    return []


def _targets(space: Space, spec: TrainSpec, values: Values) -> list[Change]:
    """No module has an adapter and trains in full."""
    if spec.policy.lora is None or not {TARGETS, SAVED} & values.keys():
        return []
    targets, saved = (_value(key, space, spec, values) for key in (TARGETS, SAVED))
    if not saved:
        return []
    given = {targets} if isinstance(targets, str) else set(targets)
    clash = given & ({*saved, *VISION_TARGETS} if any("visual" in each for each in saved) else set(saved))
    if not clash:
        return []
    why = f"{', '.join(sorted(clash))} would have adapters and train in full"
    left = [each for each in targets if each not in clash] if isinstance(targets, list) else []
    if TARGETS in values and left:
        return [(TARGETS, left, why)]
    return [(SAVED, None, why)] if SAVED in values else []


RULES: tuple[Callable[[Space, TrainSpec, Values], list[Change]], ...] = (_batch, _warmup, _targets)


def _broken(space: Space, spec: TrainSpec, made: TrainSpec) -> list[Problem]:
    """The errors of a trial's spec that the template itself does not have."""

    def errors(each: TrainSpec) -> list[Problem]:
        found = check(each) if space.samples is None else check_with_data(each, DataFacts(space.samples, 1))
        return [problem for problem in found if problem.severity == "error"]

    known = {problem.code for problem in errors(spec)}
    return [problem for problem in errors(made) if problem.code not in known]
