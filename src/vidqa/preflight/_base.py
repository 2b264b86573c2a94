"""The type of checks, and the result of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from vidqa.core.problem import Problem, ProblemError, bounded
from vidqa.preflight.inputs import DataInputs, Skip


class AtLaunch(Enum):
    """When a launch without a passed report runs a check."""

    ALWAYS = "always"
    NEVER = "it decodes, only informs, or is part of the launch itself"
    HERE = "the job runs on this machine and in this environment"
    OUTPUT = "the output folder is on this machine"
    NEW_OUTPUT = "the output folder is on this machine, and the run is new"
    CHECKPOINT = "the checkpoint that it resumes is on this machine"


@dataclass(frozen=True)
class Check:
    """One check. `needs` names the parts of the inputs without which it is blocked or skipped; `leaks` marks checks
    that compare two sets, which can be run on their own. `run` takes RunInputs, ModelInputs or DataInputs."""

    group: str
    name: str
    run: Callable[[Any], list[Problem]]
    needs: tuple[str, ...] = ()
    at_launch: AtLaunch = AtLaunch.ALWAYS
    leaks: bool = False


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: "ok", "warning", "error", "skipped" (it does not apply) or "blocked" (a part that it needs
    is unavailable, because of the problems `blocked_by`); `why` says why it did not run."""

    group: str
    name: str
    status: str
    problems: list[Problem]
    why: str = ""
    blocked_by: tuple[Problem, ...] = ()


def run_check(check: Check, inputs: DataInputs) -> CheckResult:
    part = ""
    try:
        for part in check.needs:
            getattr(inputs, part)
    except ProblemError as missing:
        first = missing.problems[0]
        why = f"{part} is unavailable: {first.code} at {first.where}"
        return CheckResult(check.group, check.name, "blocked", [], why, tuple(missing.problems))
    except Skip as reason:
        return CheckResult(check.group, check.name, "skipped", [], str(reason))
    try:
        problems = bounded(check.run(inputs))
    except Skip as reason:
        return CheckResult(check.group, check.name, "skipped", [], str(reason))
    except ProblemError as stopped:
        problems = bounded(stopped.problems)
    severities = {problem.severity for problem in problems}
    status = "error" if "error" in severities else "warning" if problems else "ok"
    return CheckResult(check.group, check.name, status, problems)
