"""Whether a request to train goes to AutoML. The decision is a workflow argument and never enters a spec."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from vidqa.core import actions
from vidqa.core.problem import Problem
from vidqa.spec.problems import AUTOML_NO_SEARCH, AUTOML_NOT_RUNNABLE

CONFIG = "config.json"


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
    enabled, broken = _enabled(root)
    if automl == "auto" and not enabled and not broken:
        return Decision("direct", True, "automl_enabled is not true in references/skill_info.yaml")
    cost, unread = _search(root)
    problems = [
        AUTOML_NOT_RUNNABLE.at(root / name, f"{name} {why}") for name, why in [*broken, *_unreadable(root), *unread]
    ]
    if cost is None and not unread:
        problems.append(AUTOML_NO_SEARCH.at(root / CONFIG, f"automl.runnable is not true in {CONFIG}"))
    if problems or cost is None:
        return _without_search(problems, automl)
    why = "AutoML is on for this run" if automl == "on" else "AutoML is enabled and not turned off for this run"
    return Decision("automl", True, f"{why}: {cost}", cost=cost)


def _without_search(problems: list[Problem], automl: str) -> Decision:
    why = "AutoML is not runnable: " + "; ".join(problem.message for problem in problems)
    if automl == "on":
        return Decision("automl", False, why, tuple(problems))
    warnings = tuple(replace(problem, severity="warning") for problem in problems)
    return Decision("direct", True, f"{why}: the training is a direct one", warnings)


def _search(root: Path) -> tuple[Cost | None, list[tuple[str, str]]]:
    """What a search costs; None where the skill has no program for it, and why its file could not be read."""
    config, why = _read(root / CONFIG)
    if why:
        return None, [(CONFIG, why)]
    search = config.get("automl") if isinstance(config, dict) else None
    if not isinstance(search, dict) or search.get("runnable") is not True:
        return None, []
    return Cost(search["trials"], search["reruns"]), []


def _enabled(root: Path) -> tuple[bool, list[tuple[str, str]]]:
    name = "references/skill_info.yaml"
    info, why = _read(root / name)
    return isinstance(info, dict) and info.get("automl_enabled") is True, [(name, why)] if why else []


def _unreadable(root: Path) -> list[tuple[str, str]]:
    searched = [action.name for action in actions.every() if action.is_searched]
    names = [
        file for name in searched for file in (f"schemas/{name}.schema.json", f"references/spec_template_{name}.yaml")
    ]
    return [(name, why) for name in names if (why := _read(root / name)[1])]


def _read(path: Path) -> tuple[object, str]:
    """What a JSON or YAML file holds, and why it could not be read."""
    try:
        text = path.read_text(encoding="utf-8")
        whole = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except FileNotFoundError:
        return None, "is missing"
    except (OSError, ValueError, yaml.YAMLError) as broken:
        return None, f"cannot be read: {type(broken).__name__}"
    return whole, "" if isinstance(whole, dict) else "does not hold a table"
