"""Decide whether a request to train goes to AutoML. This is a workflow argument and never part of a spec."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.core import actions
from vidqa.core.files import value_in
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec.layers import read_layer
from vidqa.spec.problems import AUTOML_NOT_RUNNABLE

CONFIG, INFO = "config.json", "references/skill_info.yaml"


@dataclass(frozen=True)
class Decision:
    """`decision` is direct or automl; `runnable` says whether that can be started now; `cost` counts the trainings of a
    search without limits: its `trials`, and `reruns` of the best trials."""

    decision: str
    runnable: bool
    reason: str
    problems: tuple[Problem, ...] = ()
    cost: dict[str, int] | None = None


def route_train(automl: str, root: Path) -> Decision:
    """Decide from the caller's choice (auto, on, off) and the declaration and files of the skill in `root`.

    If a search cannot run, auto gives a direct training with a warning, and on gives an error.
    """
    if automl == "off":
        return Decision("direct", True, "AutoML is off for this run")
    tables = {name: _read(root / name) for name in _needed()}
    info, config = tables[INFO], tables[CONFIG]
    if automl == "auto" and isinstance(info, dict) and info.get("automl_enabled") is not True:
        return Decision("direct", True, f"automl_enabled is not true in {INFO}")
    problems = [
        AUTOML_NOT_RUNNABLE.at(root / name, f"{name}: {why}") for name, why in tables.items() if isinstance(why, str)
    ]
    cost = {key: value for key in ("trials", "reruns") if isinstance(value := value_in(config, f"automl.{key}"), int)}
    if isinstance(config, dict) and value_in(config, "automl.runnable") is not True:
        remedy = "train directly with --automl off, or set automl.runnable if scripts/run_automl.py exists"
        problems.append(AUTOML_NOT_RUNNABLE.at(root / CONFIG, f"automl.runnable is not true in {CONFIG}", remedy))
    elif isinstance(config, dict) and len(cost) < 2:
        message = f"automl.trials or automl.reruns is not a number in {CONFIG}"
        problems.append(AUTOML_NOT_RUNNABLE.at(root / CONFIG, message))
    if not problems:
        why = "AutoML is on for this run" if automl == "on" else "AutoML is enabled and not turned off for this run"
        trainings = f"{cost['trials']} trainings instead of 1, and {cost['reruns']} more to confirm the best"
        return Decision("automl", True, f"{why}: {trainings}, unless limits end it", cost=cost)
    reason = "AutoML is not runnable: " + "; ".join(problem.message for problem in problems)
    if automl == "on":
        return Decision("automl", False, reason, tuple(problems))
    warnings = tuple(replace(problem, severity="warning") for problem in problems)
    return Decision("direct", True, f"{reason}: the training is a direct one", warnings)


def _needed() -> list[str]:
    """The files needed by a search and its callers."""
    searched = [action.name for action in actions.every() if action.is_searchable]
    kinds = ("schemas/{}.schema.json", "references/spec_template_{}.yaml")
    return [INFO, *(kind.format(name) for name in searched for kind in kinds), CONFIG]


def _read(path: Path) -> dict[str, Any] | str:
    """The table in a JSON or YAML file, or the reason why it cannot be read."""
    try:
        return read_layer(path).table
    except ProblemError as unreadable:
        return unreadable.problems[0].message
