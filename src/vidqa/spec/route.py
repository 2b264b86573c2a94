"""Whether a request to train goes to AutoML. The decision is a workflow argument and never enters a spec."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from vidqa.problem import Problem
from vidqa.spec.problems import AUTOML_NOT_RUNNABLE

OFF = re.compile(
    r"\b(turn(ed|ing)?\s+off\s+(the\s+)?auto-?ml|turn\s+(the\s+)?auto-?ml\s+off|disabl(e|ed|ing)\s+(the\s+)?auto-?ml"
    r"|no\s+auto-?ml|without\s+auto-?ml|no\s+hpo|without\s+hpo|plain\s+training)\b",
    re.IGNORECASE,
)
NO_SEARCH = "this version has no search program yet"


@dataclass(frozen=True)
class Decision:
    """`decision` is direct or automl; `runnable` says whether that can be started now."""

    decision: str
    runnable: bool
    reason: str
    problems: tuple[Problem, ...] = ()


def route_train(policy: str, request: str, bank: Path) -> Decision:
    """Decide from the policy (auto, on, off), the user's words, and what the bank declares and holds."""
    words = OFF.search(request)
    if policy == "off":
        return Decision("direct", True, "the AutoML policy is off for this run")
    if policy == "auto" and words:
        return Decision("direct", True, f"the request says {words.group(0)!r}: AutoML is off for this run")
    enabled, broken = _enabled(bank)
    if policy == "auto" and not enabled and not broken:
        return Decision("direct", True, "automl_enabled is not true in references/skill_info.yaml")
    broken += _unreadable(bank)
    if broken:
        problems = tuple(AUTOML_NOT_RUNNABLE.at(bank / name, f"{name} {why}") for name, why in broken)
        return Decision(
            "automl", False, "AutoML is enabled and not runnable: " + "; ".join(map(" ".join, broken)), problems
        )
    why = "the AutoML policy is on" if policy == "on" else "AutoML is enabled, and nothing in the request turns it off"
    return Decision("automl", False, f"{why}; {NO_SEARCH}")


def _enabled(bank: Path) -> tuple[bool, list[tuple[str, str]]]:
    name = "references/skill_info.yaml"
    info, why = _read(bank / name)
    return isinstance(info, dict) and info.get("automl_enabled") is True, [(name, why)] if why else []


def _unreadable(bank: Path) -> list[tuple[str, str]]:
    names = ("schemas/train.schema.json", "references/spec_template_train.yaml")
    return [(name, why) for name in names if (why := _read(bank / name)[1])]


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
