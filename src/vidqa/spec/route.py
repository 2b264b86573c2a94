"""Whether a request to train goes to AutoML. The decision is a workflow argument and never enters a spec."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.core import actions
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec.layers import read_layer
from vidqa.spec.problems import AUTOML_NO_SEARCH, AUTOML_NOT_RUNNABLE

CONFIG, INFO = "config.json", "references/skill_info.yaml"


@dataclass(frozen=True)
class Cost:
    """Trainings that a search makes where nothing limits it: its trials, and the best of them again."""

    trials: int
    reruns: int

    def __str__(self) -> str:
        return f"{self.trials} trainings instead of 1, and {self.reruns} more to confirm the best, unless limits end it"


@dataclass(frozen=True)
class Decision:
    """`decision` is direct or automl; `runnable` says whether that can be started now; `cost` is a search's."""

    decision: str
    runnable: bool
    reason: str
    problems: tuple[Problem, ...] = ()
    cost: Cost | None = None


def route_train(automl: str, root: Path) -> Decision:
    """Decide from the caller's word (auto, on, off) and what the skill in `root` declares and holds.

    Under auto, a search that cannot run gives a direct training with a warning; under on it gives an error.
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
    search = config.get("automl") if isinstance(config, dict) else None
    if isinstance(config, dict) and not (isinstance(search, dict) and search.get("runnable") is True):
        problems.append(AUTOML_NO_SEARCH.at(root / CONFIG, f"automl.runnable is not true in {CONFIG}"))
    if not problems:
        assert isinstance(search, dict)
        cost = Cost(search["trials"], search["reruns"])
        why = "AutoML is on for this run" if automl == "on" else "AutoML is enabled and not turned off for this run"
        return Decision("automl", True, f"{why}: {cost}", cost=cost)
    reason = "AutoML is not runnable: " + "; ".join(problem.message for problem in problems)
    if automl == "on":
        return Decision("automl", False, reason, tuple(problems))
    warnings = tuple(replace(problem, severity="warning") for problem in problems)
    return Decision("direct", True, f"{reason}: the training is a direct one", warnings)


def _needed() -> list[str]:
    """The files that a search and its callers read."""
    searched = [action.name for action in actions.every() if action.is_searchable]
    kinds = ("schemas/{}.schema.json", "references/spec_template_{}.yaml")
    return [INFO, *(kind.format(name) for name in searched for kind in kinds), CONFIG]


def _read(path: Path) -> dict[str, Any] | str:
    """The table in a JSON or YAML file, or why it cannot be read."""
    try:
        return read_layer(path).table
    except ProblemError as unreadable:
        return unreadable.problems[0].message
