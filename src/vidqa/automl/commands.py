"""The other subcommands of `run_automl.py`, beside plan, status and report: start a controller as a separate process,
follow and stop it; and trials by hand, for a person or a coding agent."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidqa.automl.journal import (
    ENQUEUE,
    STOP,
    TELL,
    controller_of,
    only_controller,
    pending_requests,
    read,
    remove_request,
    send_request,
)
from vidqa.automl.problems import STUDY_SETTINGS
from vidqa.automl.settings import PLANNED, read_settings, write_settings
from vidqa.automl.specs import preview_trials, repaired
from vidqa.automl.status import read_started, status
from vidqa.automl.study import Study, open_study, open_with_journal, study_of
from vidqa.automl.trial_jobs import STOP_GRACE_S
from vidqa.core.cli import USAGE, Result, command
from vidqa.core.environment import child_environment, python_path
from vidqa.core.files import read_object, remove
from vidqa.core.locks import locked
from vidqa.core.problem import INTERNAL, Exit, Problem, exit_code_of, raise_errors
from vidqa.spec.layers import parse_set, text_of

LOG, OUTPUT, START_LOCK = "controller.log", "controller.json", ".start.lock"
POLL_S = 0.5
BEGIN_S = 60.0  # time limit for the start of a controller


def start(folder: Path, trials: int | None = None) -> int:
    """Start a controller that outlives this process, and return the position at which its part of the log begins, once
    it works on the study. `trials` extends the study to that total. Raises BUSY, STUDY_CHANGED, STUDY_SETTINGS for a
    plan with errors, and the problems of its start."""
    read_settings(folder)
    if not read(folder).log.events and (errors := _problems_in(folder / PLANNED)):
        remedy = f"{errors[0].remedy} Then plan again: {command('run_automl', 'plan', '--study', folder)}"
        message = f"its plan has {len(errors)} errors, first {errors[0].code} at {errors[0].where}: {errors[0].message}"
        raise STUDY_SETTINGS.error(folder, message, remedy)
    with locked(folder / START_LOCK, wait_s=2 * BEGIN_S):  # of two at the same time, the second finds a controller
        with only_controller(folder):  # a second controller is refused before a process is started
            if trials is not None:
                extend(folder, trials)
        return _start_controller(folder)


def _start_controller(folder: Path) -> int:
    remove(folder / OUTPUT, owner=folder)
    words = [sys.executable, "-P", "-m", "vidqa.automl.controller", "--study", str(folder.absolute()), "--json"]
    environment = child_environment(PYTHONPATH=python_path())
    with (folder / LOG).open("ab") as log, (folder / OUTPUT).open("wb") as output:
        position = log.tell()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=log, env=environment, start_new_session=True
        )
    deadline = time.monotonic() + BEGIN_S
    while time.monotonic() < deadline and process.poll() is None:
        controller = controller_of(folder)
        if controller and controller.pid == process.pid and read(folder).log.events:  # status has something to show
            break
        time.sleep(0.05)
    raise_errors(_problems_in(folder / OUTPUT))
    if code := process.poll():
        message, remedy = f"its controller ended at once, with exit code {code}", f"report it with {folder / LOG}"
        raise INTERNAL.error(folder, message, remedy)
    return position


def extend(folder: Path, trials: int) -> None:
    """Raise the number of trials of a study, also of a finished one. Raises STUDY_SETTINGS, STUDY_CHANGED."""
    settings, history = read_settings(folder), read(folder).history
    count = max(history.max_trials or settings.max_trials, len(history.trials))
    if trials <= count:
        message = f"the study has {count} trials"
        raise STUDY_SETTINGS.error(f"--trials {trials}", message, "give a larger number")
    longer = settings.model_copy(update={"max_trials": trials})
    study_of(folder, longer).fits(history)
    write_settings(folder, longer)


def follow(folder: Path, timeout_s: float | None, show: Callable[[str], None], position: int = 0) -> None:
    """Show the controllers' log from a position until no controller runs, or the timeout."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    end = b""  # of the log, a line that is not complete
    with (folder / LOG).open("rb") as log:
        log.seek(position)
        while True:
            is_alive = controller_of(folder) is not None
            *lines, end = (end + log.read()).split(b"\n")
            if lines:
                show(b"\n".join(lines).decode(errors="replace"))
            if not is_alive or (deadline is not None and time.monotonic() > deadline):
                return
            time.sleep(POLL_S)


def _problems_in(path: Path) -> list[Problem]:
    """The problems in the output of the last controller, or of the last plan."""
    problems = read_object(path).get("problems")
    return [Problem(**problem) for problem in problems] if isinstance(problems, list) else []


def stop(folder: Path) -> None:
    """Ask the study to stop, and wait until it has; without a controller, end the jobs that it left running. A finished
    study needs nothing."""
    from vidqa.automl.controller import controlling
    from vidqa.preflight import launch_gate

    if read_started(folder).history.finished and controller_of(folder) is None:
        return
    send_request(folder, STOP, {})
    deadline = time.monotonic() + STOP_GRACE_S
    while controller_of(folder) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    pending = [request for request in pending_requests(folder) if request.verb == STOP]
    if read(folder).history.finished:  # it finished by itself; the request must not stop it after an extension
        for request in pending:
            remove_request(folder, request)
        return
    if not pending:
        return
    with controlling(folder, launch_gate.ready) as controller:
        controller.take_requests()


def wait(folder: Path, timeout_s: float | None, show: Callable[[str], None], position: int) -> Result:
    """Follow a started study, and return its final status, with the problems that ended its controller."""
    follow(folder, timeout_s, show, position)
    result = status(folder)
    if controller_of(folder):
        return replace(result, exit_code=int(Exit.NOT_DONE))
    problems = _problems_in(folder / OUTPUT)
    return replace(result, problems=[*result.problems, *problems], exit_code=exit_code_of(problems))


# --- trials by hand --------------------------------------------------------------------------------------------------


def suggest(folder: Path, count: int) -> Result:
    """The values that the algorithm would try next, if running trials had no result. Nothing is started. Raises USAGE
    for a count below one."""
    if count < 1:
        raise USAGE.error(f"--count {count}", "it is less than 1", "write --count 1, or more")
    study, journal = open_with_journal(folder)
    rows = preview_trials(study, journal.history.trials, count)
    lines = [f"{row['proposer']}: {row['values']}" for row in rows] or ["the algorithm proposes nothing now"]
    data = {"suggestions": rows, "trials": len(journal.history.trials), "note": journal.note}
    return Result(data, "\n".join(lines), next=[_enqueue_command(folder, row["values"]) for row in rows[:3]])


def enqueue(folder: Path, sets: list[str], proposer: str) -> Result:
    """Enqueue values to try before those of the algorithm. Raises USAGE, AUTOML_RANGE."""
    values, repairs = _checked(open_study(folder), sets)
    return _send(folder, ENQUEUE, {"values": values, "proposer": proposer}, repairs)


def tell(folder: Path, sets: list[str], objectives: list[float], proposer: str) -> Result:
    """Record a trial that was run elsewhere and its result, one number per goal. Raises USAGE, and for the values the
    problems of `enqueue`."""
    study = open_study(folder)
    values, repairs = _checked(study, sets)
    if len(objectives) != len(study.settings.goals) or not all(map(math.isfinite, objectives)):
        goals = ", ".join(goal.metric for goal in study.settings.goals)
        message = f"{len(objectives)} numbers ({', '.join(map(str, objectives)) or 'none'}); the goals are {goals}"
        raise USAGE.error("--objective", message, "give a finite number for each goal: --objective X")
    return _send(folder, TELL, {"values": values, "proposer": proposer, "objectives": objectives}, repairs)


def _checked(study: Study, sets: list[str]) -> tuple[dict[str, Any], list[str]]:
    proposed = study.space.as_searched(parse_set(sets).table)
    if not proposed:
        searched = ", ".join(parameter.name for parameter in study.space.parameters)
        raise USAGE.error("--set", f"no value is given; the search is over {searched}", "name values: --set KEY=VALUE")
    raise_errors(study.space.problems(proposed))
    values, repairs = repaired(study.space, study.base, proposed)
    return values, list(repairs)


def _send(folder: Path, verb: str, content: dict[str, Any], repairs: list[str]) -> Result:
    name = send_request(folder, verb, content)
    lines = [f"{verb}: {content['values']}", *(f"repaired: {repair}" for repair in repairs)]
    data = {"request": name, "values": content["values"], "repairs": repairs}
    data |= {key: content[key] for key in ("proposer", "objectives") if verb == TELL}
    following = ["status", "--study", folder]
    history = read(folder).history
    if history.finished:
        following = ["start", "--study", folder, "--trials", str(len(history.trials) + 1)]
        lines.append("the study has ended: start it with more trials to run this")
    return Result(data, "\n".join(lines), next=[command("run_automl", *following)])


def _enqueue_command(folder: Path, values: dict[str, Any]) -> str:
    words = [word for key, value in values.items() for word in ("--set", f"{key}={text_of(value)}")]
    return command("run_automl", "enqueue", "--study", folder, *words)
