"""What our own engine does with each key: uses it, takes only some values, or accepts it without effect."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from vidqa.core.actions import action_for
from vidqa.core.problem import Problem
from vidqa.spec.keys import flat, leaves
from vidqa.spec.layers import brief
from vidqa.spec.models import Spec
from vidqa.spec.problems import NO_EFFECT, NOT_SUPPORTED


def facts(field: FieldInfo) -> dict[str, Any]:
    """The x- properties of a key: x-native always, x-instead and x-automl where there are any."""
    extra = field.json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}


def native_problems(spec: Spec) -> list[Problem]:
    """An error for every value that our engine does not take, a warning for every one that changes nothing."""
    values, fields = flat(spec), leaves(action_for(spec).name)
    problems = [_judge(path, values[path], field) for path, field in fields.items() if path in values]
    if "tao" in values.get("logging.logger", ()):
        message = "there is no tracker tao here"
        problems.append(NO_EFFECT.at("logging.logger", message, 'use ["console"]', severity="warning"))
    return [problem for problem in problems if problem]


def _judge(path: str, value: Any, field: FieldInfo) -> Problem | None:
    about = facts(field)
    native, instead = about["x-native"], about.get("x-instead")
    if native == "no effect" and value != field.default:
        remedy = f"use {instead} instead" if instead else "remove it, or ignore this"
        return NO_EFFECT.at(path, f"{path} = {brief(value)} changes nothing here", remedy, severity="warning")
    if isinstance(native, dict) and not _allowed(native["only"], value):
        only = " or ".join(map(repr, native["only"]))
        remedy = f"use {instead} instead" if instead else f"set {path} to {only}, or use --target cosmos-rl"
        return NOT_SUPPORTED.at(path, f"our engine takes only {only}; got {brief(value)}", remedy)
    return None


def _allowed(only: list[Any], value: Any) -> bool:
    return any(value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in only)
