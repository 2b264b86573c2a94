"""Trials by hand, for a person or a coding agent: suggest values, enqueue some, tell of a trial made elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from vidqa.automl.journal import ENQUEUE, TELL, send_request
from vidqa.automl.plan import suggested
from vidqa.automl.repair import repaired
from vidqa.automl.study import Study, open_study, open_with_history
from vidqa.core.cli import USAGE, Result, command
from vidqa.core.problem import raise_errors
from vidqa.spec.layers import parse_set


def suggest(folder: Path, count: int) -> Result:
    """The values that the algorithm would try next, if running trials gave no result. Nothing is started. Raises
    USAGE for a count below one."""
    if count < 1:
        raise USAGE.error(f"--count {count}", "less than one is asked for", "write --count 1, or more")
    study, history, note = open_with_history(folder)
    rows = suggested(study, history.trials, count)
    lines = [f"{row['proposer']}: {row['values']}" for row in rows] or ["the algorithm proposes nothing now"]
    data = {"suggestions": rows, "trials": len(history.trials), "note": note}
    return Result(data, "\n".join(lines), next=[_enqueue_command(folder, row["values"]) for row in rows[:3]])


def enqueue(folder: Path, sets: list[str], proposer: str) -> Result:
    """Values to try next, before those of the algorithm. Raises USAGE, AUTOML_RANGE."""
    values, repairs = _checked(open_study(folder), sets)
    return _send(folder, ENQUEUE, {"values": values, "proposer": proposer}, repairs)


def tell(folder: Path, sets: list[str], objectives: list[float], proposer: str) -> Result:
    """A trial that was made elsewhere and its result, one number for each goal. Raises USAGE, and for values
    what `enqueue` raises."""
    study = open_study(folder)
    values, repairs = _checked(study, sets)
    if len(objectives) != len(study.settings.goals) or not all(map(math.isfinite, objectives)):
        goals = ", ".join(goal.metric for goal in study.settings.goals)
        message = f"{len(objectives)} numbers ({', '.join(map(str, objectives)) or 'none'}); the goals are {goals}"
        raise USAGE.error("--objective", message, "name a finite number for each goal: --objective X")
    return _send(folder, TELL, {"values": values, "proposer": proposer, "objectives": objectives}, repairs)


def _checked(study: Study, sets: list[str]) -> tuple[dict[str, Any], list[str]]:
    proposed = parse_set(sets).table
    if not proposed:
        searched = ", ".join(parameter.name for parameter in study.space.parameters)
        raise USAGE.error("--set", f"no value is named; the search is over {searched}", "name values: --set KEY=VALUE")
    raise_errors(study.space.problems(proposed))
    values, repairs = repaired(study.space, study.base, proposed)
    return values, list(repairs)


def _send(folder: Path, verb: str, content: dict[str, Any], repairs: list[str]) -> Result:
    name = send_request(folder, verb, content)
    lines = [f"{verb}: {content['values']}", *(f"repaired: {repair}" for repair in repairs)]
    data = {"request": name, "values": content["values"], "repairs": repairs}
    data |= {key: content[key] for key in ("proposer", "objectives") if verb == TELL}
    return Result(data, "\n".join(lines), next=[command("run_automl", "status", "--study", folder)])


def _enqueue_command(folder: Path, values: dict[str, Any]) -> str:
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return command("run_automl", "enqueue", "--study", folder, *words)
