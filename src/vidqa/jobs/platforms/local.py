"""The platform "local": torchrun on this machine, detached from the launcher; and the GPUs and cores of this machine.

A small supervisor process, in its own session, starts torchrun and stores its exit code. The state of a job is read
from that file and from the processes with the job's name, never inferred from an earlier observation.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from vidqa.core import environment
from vidqa.core._optional import PACKAGE_MISSING
from vidqa.core.problem import Problem
from vidqa.core.versions import output_of
from vidqa.jobs.platforms._base import (
    RUN_SCRIPT,
    SPEC_FILE,
    Job,
    Observed,
    Platform,
    Rendered,
    State,
    Submitted,
    copy_command,
)
from vidqa.jobs.platforms.engine_process import (
    ended_locally,
    engine_environment,
    gpu_problems,
    torchrun,
    unlisted,
)
from vidqa.jobs.platforms.job_store import exit_file, read_exit
from vidqa.jobs.platforms.processes import (
    JOB_VARIABLE,
    PROC,
    SUPERVISOR_VARIABLE,
    ProcessIdentity,
    engine_processes,
    job_processes,
    supervisors,
    this_process,
)
from vidqa.jobs.platforms.supervisor import START, kill_job
from vidqa.jobs.problems import (
    PLATFORM_IMAGE_UNUSED,
    PLATFORM_NODES,
    PLATFORM_UNREACHABLE,
    REACH,
)

FOUND_S = 60.0  # seconds for a new process to appear in /proc


def gpu_count() -> int:
    """The number of NVIDIA GPUs visible to a job that starts here: for CUDA, those before the first invalid name, and
    one MIG device only."""
    listed, names = output_of("nvidia-smi", "-L"), environment.visible_gpus()
    present = len(_installed_gpus(listed))
    if mig_profile(names, listed):
        return 1
    valid = takewhile(lambda name: not name.isdigit() or int(name) < present, names or ())
    return present if names is None else min(present, len(list(valid)))


def mig_profile(names: list[str] | None, listed: str | None) -> str | None:
    """The profile, such as 3g.20gb, of the MIG device that CUDA shows to a process: the first of `names`, or of those
    that `nvidia-smi -L` `listed`. None if CUDA shows whole GPUs."""
    first = names[0] if names else "MIG-" if names is None else "none"
    devices = re.findall(r"MIG (\S+)\s.*\(UUID: (.*)\)", listed or "")
    return next((profile for profile, uuid in devices if uuid.startswith(first)), None)


def cpu_count() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def used_gpus(count: int) -> tuple[str, ...]:
    """The indices of the GPUs of `count` processes that start here, one for each."""
    names = environment.visible_gpus()
    return tuple(gpu_indices((names if names is not None else [str(number) for number in range(count)])[:count]))


def gpu_indices(names: list[str]) -> list[str]:
    """Names of CUDA_VISIBLE_DEVICES with the index, as in nvidia-smi, in place of each UUID or its beginning."""
    uuids = [] if all(map(str.isdigit, names)) else _installed_gpus(output_of("nvidia-smi", "-L"))
    return [next((str(at) for at, uuid in enumerate(uuids) if uuid.startswith(name)), name) for name in names]


def _installed_gpus(listed: str | None) -> list[str]:
    """The UUIDs of this machine's GPUs, in the order of their indices; empty strings without a working nvidia-smi."""
    if listed is None:
        return ["" for device in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", device.name)]
    return re.findall(r"^GPU .*?(?:\(UUID: (.*)\))?$", listed, re.MULTILINE)


def check(job: Job) -> list[Problem]:
    problems = []
    if not (PROC / "self/environ").exists():
        problems.append(PLATFORM_UNREACHABLE.at(PROC, "there is no /proc: jobs could not be observed", REACH["Local"]))
    if importlib.util.find_spec("torch") is None:
        problems.append(PACKAGE_MISSING.at("torch", f"{sys.executable} has no torch, so there is no torchrun"))
    if job.nodes > 1:
        problems.append(PLATFORM_NODES.at("--nodes", f"local has one node, {job.nodes} are requested"))
    if job.image:
        problems.append(PLATFORM_IMAGE_UNUSED.at("--image", "the platform is local", severity="warning"))
    return problems + gpu_problems(job, "visible")


def render(job: Job) -> Rendered:
    own_threads = environment.has("OMP_NUM_THREADS")
    settings = engine_environment(job, None if own_threads else cpu_count())
    if job.gpus == 0:
        settings["CUDA_VISIBLE_DEVICES"] = ""
    settings["PYTHONPATH"] = environment.python_path()
    return Rendered(torchrun(sys.executable, job), settings)


def submit_command(job: Job, folder: Path) -> str:
    return f"{copy_command((SPEC_FILE,), folder, job.run_dir)} && bash {shlex.quote(str(folder / RUN_SCRIPT))}"


def submit(job: Job, rendered: Rendered) -> dict[str, Any]:
    """Start the supervisor; the reference is its identity. It gets the START signal once it is found in /proc: if this
    launcher is killed, other processes can find the supervisor, or it has started nothing. Raises PLATFORM_UNREACHABLE
    if it is never found."""
    command = [sys.executable, "-m", "vidqa.jobs.platforms.supervisor", job.job_id, str(exit_file(job.job_id))]
    names = {SUPERVISOR_VARIABLE: job.job_id, JOB_VARIABLE: ""}
    with job.log.open("ab") as log:
        supervisor = subprocess.Popen(
            [*command, *rendered.command],
            env=environment.child_environment(**rendered.environment, **names),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + FOUND_S
    while supervisor.poll() is None and not supervisors(job.job_id):
        if time.monotonic() > deadline:
            supervisor.communicate()  # it ends without the START signal
            message = f"the environment of process {supervisor.pid} cannot be read: the job could not be observed"
            raise PLATFORM_UNREACHABLE.error(PROC, message, REACH["Local"])
        time.sleep(0.001)
    with suppress(BrokenPipeError), supervisor.stdin as pipe:  # type: ignore[union-attr]
        pipe.write(START)
    identity = ProcessIdentity.of_pid(supervisor.pid)
    return identity.as_dict() if identity else {}


def status(job: Submitted) -> Observed:
    ended = _ended(job)
    if ended is not None:
        return ended
    if job.launcher.host != this_process().host:
        return Observed(job.state, None, f"it was started on {job.launcher.host}; check it there")
    launching = job.reference is None and job.launcher.is_alive  # first: it may start its job and exit meanwhile
    supervisor = _supervisor_of(job)
    if engine_processes(job.job_id, supervisor=supervisor):
        return Observed(State.RUNNING)
    if supervisor or supervisors(job.job_id) or job_processes(job.job_id):
        return Observed(State.PENDING if job.state == State.PENDING else State.RUNNING)
    if launching:
        return Observed(State.PENDING)
    restarted = ": the machine has restarted" * (job.launcher.boot != this_process().boot)
    # It may have ended meanwhile.
    return _ended(job) or unlisted(job, f"the process vanished without an exit code{restarted}")


def _supervisor_of(job: Submitted) -> ProcessIdentity | None:
    """The live supervisor by its pid: the environment of a new process is unreadable for a moment."""
    pid = (job.reference or {}).get("pid")
    process = ProcessIdentity.of_pid(pid) if isinstance(pid, int) else None
    return process if process and process.as_dict() == job.reference else None


def cancel(job: Submitted, grace_s: float) -> None:
    """Stop a job: SIGTERM, after `grace_s` SIGKILL. Raises PLATFORM_UNREACHABLE for a job of another machine."""
    if job.launcher.host != this_process().host:
        message = f"it runs on {job.launcher.host}, whose processes cannot be signalled from here"
        raise PLATFORM_UNREACHABLE.error(job.job_id, message, "cancel it there")
    deadline = time.monotonic() + grace_s
    signaled: set[ProcessIdentity] = set()
    while not status(job).state.is_terminal and time.monotonic() < deadline:
        processes = set(engine_processes(job.job_id) or job_processes(job.job_id))
        for process in processes - signaled:
            process.send_signal(signal.SIGTERM)
        signaled |= processes
        time.sleep(0.05)
    kill_job(job.job_id)
    _await_supervisor(job)


def _await_supervisor(job: Submitted) -> None:
    """Wait for the supervisor to write its file, and kill it if it does not."""
    deadline = time.monotonic() + 10
    while (alive := supervisors(job.job_id)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for supervisor in alive:
        supervisor.send_signal(signal.SIGKILL)
    kill_job(job.job_id)  # a process that was just starting


def _ended(job: Submitted) -> Observed | None:
    """The end state, from the exit file and the engine's status; None without a readable exit file."""
    exit_code = read_exit(job.job_id).get("exit_code")
    return ended_locally(job, exit_code) if isinstance(exit_code, int) else None


LOCAL = Platform(
    name="local",
    check=check,
    render=render,
    submit=submit,
    status=status,
    cancel=cancel,
    visible_gpus=lambda settings: gpu_count(),
    sees_all=lambda settings: True,
    submit_command=submit_command,
)
