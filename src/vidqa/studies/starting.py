"""Starts the controller of a study as a process of its own, and waits for what becomes of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vidqa.contract.cli import SKILL_ROOT, Result
from vidqa.contract.environment import child_environment, python_path
from vidqa.contract.files import read_object, remove
from vidqa.contract.problem import Exit, Problem, exit_code_of, raise_errors
from vidqa.studies import requests
from vidqa.studies.journal import controller_of, only_controller, read
from vidqa.studies.settings import read_settings, write_settings
from vidqa.studies.status import status
from vidqa.studies.study import history_of, study_of
from vidqa.studies.study_problems import STUDY_MISSING, STUDY_SETTINGS
from vidqa.studies.work import STOP_GRACE_S

LOG, SAID = "controller.log", "controller.json"
POLL_S = 0.5
TAKES_S = 60.0  # for a controller to begin


def start(folder: Path, trials: int | None = None) -> None:
    """Start a controller that outlives this process; returns once it works on the study. `trials` are the trials in all
    of a study that is to become longer. Raises STUDY_BUSY, STUDY_CHANGED, and what kept it from beginning."""
    if not (folder / "study.toml").is_file():
        raise STUDY_MISSING.error(folder, "there is no study.toml in it")
    with only_controller(folder):  # nobody else is there: said before a process is started
        if trials is not None:
            extend(folder, trials)
    remove(folder / SAID, owner=folder)
    words = [sys.executable, "-P", "-m", "vidqa.studies", "--study", str(folder.absolute()), "--json"]
    environment = child_environment(PYTHONPATH=python_path(SKILL_ROOT / "src"))
    with (folder / LOG).open("ab") as log, (folder / SAID).open("wb") as said:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=log, env=environment, start_new_session=True
        )
    deadline = time.monotonic() + TAKES_S
    while time.monotonic() < deadline and process.poll() is None:
        controller = controller_of(folder)
        if controller and controller.pid == process.pid and read(folder).events:  # status can tell of it from now on
            return
        time.sleep(0.05)
    raise_errors(problems_said(folder))


def extend(folder: Path, trials: int) -> None:
    """Let a study have more trials, also one that has ended. Raises STUDY_SETTINGS, STUDY_CHANGED."""
    settings, history = read_settings(folder), history_of(folder)[0]
    has = max(history.max_trials or settings.max_trials, len(history.trials))
    if trials <= has:
        message = f"the study has {has} trials"
        raise STUDY_SETTINGS.error(f"--trials {trials}", message, "name a larger number")
    longer = settings.model_copy(update={"max_trials": trials})
    study_of(folder, longer).fits(history)
    write_settings(folder, longer)


def follow(folder: Path, timeout_s: float | None, show: Callable[[str], None]) -> None:
    """Show the controller's log until nobody works on the study, or the time is over."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    position = 0
    while True:
        works = controller_of(folder) is not None
        with (folder / LOG).open("rb") as log:
            log.seek(position)
            gained = log.read()
        whole = gained[: gained.rfind(b"\n") + 1]
        position += len(whole)
        if whole:
            show(whole.decode(errors="replace").rstrip("\n"))
        if not works or (deadline is not None and time.monotonic() > deadline):
            return
        time.sleep(POLL_S)


def problems_said(folder: Path) -> list[Problem]:
    """What kept the last controller from going on."""
    said = read_object(folder / SAID).get("problems")
    return [Problem(**each) for each in said] if isinstance(said, list) else []


def stop(folder: Path) -> None:
    """Ask the study to stop, and wait until it has; where nobody works on it, end the jobs that it left running. One
    that has ended needs nothing."""
    from vidqa.preflight import launch_gate
    from vidqa.studies.controller import Controller
    from vidqa.studies.study import open_study

    if not read(folder).events:
        raise STUDY_MISSING.error(folder, "nothing of it was started")
    if history_of(folder)[0].finished and controller_of(folder) is None:
        return
    requests.ask(folder, requests.STOP, {})
    deadline = time.monotonic() + STOP_GRACE_S
    while controller_of(folder) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    asked = [each for each in requests.pending(folder) if each.verb == requests.STOP]
    if history_of(folder)[0].finished:  # it ended by itself; what was asked must not stop it when it becomes longer
        for request in asked:
            requests.forget(folder, request)
        return
    if not asked:
        return
    with only_controller(folder):
        controller = Controller(open_study(folder), launch_gate.of_engine("vidqa"))
        try:
            controller.take_requests()
        finally:
            controller.journal.close()


def ended(folder: Path, timeout_s: float | None, show: Callable[[str], None]) -> Result:
    """Follow a study that was started, and say how it stands then, with what kept it from its end."""
    follow(folder, timeout_s, show)
    stands = status(folder)
    if controller_of(folder):
        return replace(stands, exit_code=int(Exit.NOT_DONE))
    problems = problems_said(folder)
    return replace(stands, problems=[*stands.problems, *problems], exit_code=exit_code_of(problems))
