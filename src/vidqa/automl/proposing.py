"""What a person or a coding agent does in a study: ask for values, enqueue some, tell of a trial made elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from vidqa.contract.cli import Result, command
from vidqa.contract.problem import raise_errors
from vidqa.spec.layers import parse_set
from vidqa.automl import requests
from vidqa.automl.plan import suggested
from vidqa.automl.repair import repaired
from vidqa.automl.study import Study, history_of, open_study
from vidqa.automl.study_problems import STUDY_ASKED


def suggest(folder: Path, count: int) -> Result:
    """The values that the algorithm would try next, if those that run reached nothing new. Nothing is started. Raises
    STUDY_ASKED for less than one."""
    if count < 1:
        raise STUDY_ASKED.error(f"--count {count}", "less than one is asked for", "write --count 1, or more")
    study = open_study(folder)
    history, note = history_of(folder)
    study.fits(history)
    found = suggested(study, [entry.as_trial for entry in history.trials], count)
    lines = [f"{row['proposer']}: {row['values']}" for row in found] or ["the algorithm proposes nothing now"]
    data = {"suggestions": found, "trials": len(history.trials), "note": note}
    return Result(data, "\n".join(lines), next=[_enqueue(folder, row["values"]) for row in found[:3]])


def enqueue(folder: Path, sets: list[str], proposer: str) -> Result:
    """Values to be tried next, before those of the algorithm. Raises STUDY_ASKED, AUTOML_UNKNOWN_KEY, AUTOML_VALUE and
    what the repair raises."""
    study = open_study(folder)
    values, repairs = _checked(study, sets)
    name = requests.ask(folder, requests.ENQUEUE, {"values": values, "proposer": proposer})
    data = {"request": name, "values": values, "repairs": repairs}
    return Result(data, _shown("enqueued", values, repairs), next=[command("run_automl", "status", "--study", folder)])


def tell(folder: Path, sets: list[str], objectives: list[float], proposer: str) -> Result:
    """A trial that was made elsewhere and what it reached, one number for each goal. Raises STUDY_ASKED,
    STUDY_GOAL, and for values what `enqueue` raises."""
    study = open_study(folder)
    values, repairs = _checked(study, sets)
    if len(objectives) != len(study.settings.goals):
        goals = ", ".join(goal.metric for goal in study.settings.goals)
        raise STUDY_ASKED.error("--objective", f"{len(objectives)} numbers are told; the goals are {goals}")
    if wrong := [value for value in objectives if not math.isfinite(value)]:
        raise STUDY_ASKED.error("--objective", f"{wrong[0]} is no number that trials could be compared by")
    said: dict[str, Any] = {"values": values, "proposer": proposer, "objectives": objectives}
    name = requests.ask(folder, requests.TELL, said)
    data = {"request": name, **said, "repairs": repairs}
    return Result(data, _shown("told", values, repairs), next=[command("run_automl", "status", "--study", folder)])


def _checked(study: Study, sets: list[str]) -> tuple[dict[str, Any], list[str]]:
    given = parse_set(sets).table
    if not given:
        searched = ", ".join(each.name for each in study.space.parameters)
        raise STUDY_ASKED.error("--set", f"no value is named; the search is over {searched}")
    raise_errors(study.space.problems(given))
    values, repairs = repaired(study.space, study.base, given)
    return values, list(repairs)


def _shown(verb: str, values: dict[str, Any], repairs: list[str]) -> str:
    return "\n".join([f"{verb}: {values}", *(f"repaired: {repair}" for repair in repairs)])


def _enqueue(folder: Path, values: dict[str, Any]) -> str:
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return command("run_automl", "enqueue", "--study", folder, *words)
