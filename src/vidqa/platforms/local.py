"""The platform "local": torchrun on this machine, detached from whoever launched it.

A small supervisor process, in a session of its own, starts torchrun and writes down its exit code. What is true of a
job is read from that file and from the processes that carry the job's name, never from what was last seen.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import vidqa
from vidqa import environment
from vidqa._optional import PACKAGE_MISSING
from vidqa.platforms import hardware
from vidqa.platforms._base import Job, Observed, Platform, Rendered, State
from vidqa.platforms.problems import ENV_NO_GPU, PLATFORM_TOO_FEW_GPUS, PLATFORM_UNSUITABLE
from vidqa.platforms.processes import (
    JOB_VARIABLE,
    PROC,
    SUPERVISOR_VARIABLE,
    Identity,
    engine_processes,
    job_processes,
    supervisors,
    this_process,
)
from vidqa.platforms.records import JobRecord, exit_file
from vidqa.platforms.supervisor import kill_job
from vidqa.problem import Exit, Problem
from vidqa.run_folder import RunFolder

SAVE_S = 600  # how long torchrun lets the other ranks finish their part of a checkpoint when one has left


def check(job: Job) -> list[Problem]:
    problems = []
    if not (PROC / "self/environ").exists():
        problems.append(PLATFORM_UNSUITABLE.at(PROC, "there is no /proc: jobs could not be observed"))
    if importlib.util.find_spec("torch") is None:
        problems.append(PACKAGE_MISSING.at("torch", f"{sys.executable} has no torch, so there is no torchrun"))
    if job.gpus == 0:
        message = f"no GPU is visible: {job.processes} CPU process(es) will run"
        problems.append(ENV_NO_GPU.at("nvidia-smi -L", message, severity="warning"))
    elif job.processes > job.gpus:
        problems.append(PLATFORM_TOO_FEW_GPUS.at("gpus", f"the spec needs {job.processes}, {job.gpus} visible"))
    return problems


def render(job: Job) -> Rendered:
    torchrun = (sys.executable, "-m", "vidqa.engine.torchrun", "--standalone", f"--nproc-per-node={job.processes}")
    engine = ("-m", "vidqa.engine", job.action, "--spec", str(job.spec), "--run-dir", str(job.run_dir))
    settings = {
        "PYTHONPATH": environment.python_path(Path(vidqa.__file__).parents[1]),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",  # the model was fetched before; no rank asks the hub again
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVE_S),
    }
    if job.gpus == 0 and not environment.has("OMP_NUM_THREADS"):
        settings["OMP_NUM_THREADS"] = str(max(1, hardware.cpu_count() // job.processes))
    return Rendered(torchrun + engine, settings)


def submit(job: Job, rendered: Rendered) -> dict[str, Any]:
    """Start the supervisor; the reference is its identity."""
    command = [sys.executable, "-m", "vidqa.platforms.supervisor", job.job_id, str(exit_file(job.job_id))]
    names = {SUPERVISOR_VARIABLE: job.job_id, JOB_VARIABLE: ""}
    with job.log.open("ab") as log:
        supervisor = subprocess.Popen(
            [*command, *rendered.command],
            env=environment.child_environment(**rendered.environment, **names),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    identity = Identity.of(supervisor.pid)
    return identity.as_dict() if identity else {}


def status(record: JobRecord) -> Observed:
    ended = _ended(record)
    if ended is not None:
        return ended
    launcher = Identity.from_dict(record.launcher)
    if launcher.host != this_process().host:
        return Observed(record.state, None, f"it was started on {launcher.host}; ask there")
    if engine_processes(record.job_id):
        return Observed(State.RUNNING)
    if supervisors(record.job_id) or job_processes(record.job_id):
        return Observed(State.PENDING if record.state == State.PENDING else State.RUNNING)
    if record.reference is None and launcher.is_alive:
        return Observed(State.PENDING)
    # Between the first look and here it may have ended in the ordinary way.
    return _ended(record) or _vanished(record)


def cancel(record: JobRecord, grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    asked: set[Identity] = set()
    while not status(record).state.is_terminal and time.monotonic() < deadline:
        found = set(engine_processes(record.job_id) or job_processes(record.job_id))
        for process in found - asked:
            process.send(signal.SIGTERM)
        asked |= found
        time.sleep(0.05)
    kill_job(record.job_id)
    _await_supervisor(record)


def _await_supervisor(record: JobRecord) -> None:
    """Let the supervisor write its file; one that does not is ended too."""
    deadline = time.monotonic() + 10
    while (found := supervisors(record.job_id)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for supervisor in found:
        supervisor.send(signal.SIGKILL)


def _ended(record: JobRecord) -> Observed | None:
    """What the exit file and the engine's own last words say; None while there is no exit file."""
    try:
        exit_code = int(json.loads(exit_file(record.job_id).read_text())["exit_code"])
    except FileNotFoundError:
        return None
    state, code, message = _engine_says(record)
    if exit_code == 0 and state == State.COMPLETE:
        return Observed(State.COMPLETE, 0, message)
    if exit_code == 0 and state != State.STOPPED:
        message = f"it ended with exit code 0 but its status says {state}: {message}".removesuffix(": ")
    elif state == State.COMPLETE or not code:
        message = _death(record.log, exit_code)
    # torchrun ends with 1 whatever its workers ended with; the engine's own word is more exact.
    code = code if code and state not in (State.COMPLETE, None) else int(Exit.JOB_FAILED)
    return _verdict(record, code, message)


def _vanished(record: JobRecord) -> Observed:
    """No process, no exit file: what the engine wrote last decides, and without it the job has failed."""
    state, code, message = _engine_says(record)
    if state == State.COMPLETE:
        return Observed(State.COMPLETE, 0, message)
    if code:
        return _verdict(record, code, message)
    return _verdict(record, int(Exit.JOB_FAILED), "the process vanished without leaving an exit code")


def _verdict(record: JobRecord, code: int, message: str) -> Observed:
    if record.cancel_requested:
        saved = code == Exit.NOT_DONE
        return Observed(State.CANCELED, code, message if saved else "it was ended before it had saved itself")
    return Observed(State.STOPPED if code == Exit.NOT_DONE else State.ERROR, code, message)


def _engine_says(record: JobRecord) -> tuple[State | None, int | None, str]:
    """State, exit code and message of status.json; nothing where it is missing or broken."""
    try:
        said = RunFolder(Path(record.run_dir)).read_status()
        return State(said["state"]), said.get("exit_code"), str(said.get("message") or "")
    except (OSError, ValueError, KeyError, AttributeError):
        return None, None, ""


def _death(log: Path, exit_code: int) -> str:
    """How the processes ended, for an engine that could not say it: torchrun's log has each worker's exit code."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            tail = file.read().decode(errors="replace")
    except OSError:
        tail = ""
    signals = [int(number) for number in re.findall(r"exitcode: -(\d+)", tail)] or (
        [-exit_code] if exit_code < 0 else []
    )
    if signal.SIGKILL in signals:
        return "an engine process was killed (SIGKILL): usually the machine's memory was full"
    if signals:
        return f"an engine process was ended by signal {signal.Signals(signals[0]).name}"
    return f"it ended with exit code {exit_code}"


LOCAL = Platform("local", check, render, submit, status, cancel)
