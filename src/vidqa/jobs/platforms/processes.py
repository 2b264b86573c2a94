"""Processes of this machine, identified beyond the pid, which the system may reuse.

A process is identified by pid, start time and boot. A job's processes have the job's name in their environment, which
children inherit, so all of them are found even if their parents have ended.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
JOB_VARIABLE = "VIDQA_JOB"  # in every process of a job
SUPERVISOR_VARIABLE = "VIDQA_SUPERVISOR"  # in the supervisor of a job
# Fields of /proc/PID/stat after the program's name, from 0.
STAT_STATE, STAT_PARENT, STAT_START = 0, 1, 19
ENDED_STATES = "ZX"  # zombie, dead


@dataclass(frozen=True)
class ProcessIdentity:
    """A process. `started` is in clock ticks since the boot with the id `boot`; whether a process on another `host` is
    alive is unknown."""

    pid: int
    started: int
    boot: str
    host: str

    @staticmethod
    def of_pid(pid: int) -> ProcessIdentity | None:
        """The live process with this pid; None if it has ended or is a zombie."""
        if (fields := _stat_fields(pid)) is None or fields[STAT_STATE] in ENDED_STATES:
            return None
        return ProcessIdentity(pid, int(fields[STAT_START]), boot_id(), socket.gethostname())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_alive(self) -> bool:
        return ProcessIdentity.of_pid(self.pid) == self

    @property
    def may_be_alive(self) -> bool:
        """Whether it is alive, or on another machine, where that is unknown."""
        return self.host != socket.gethostname() or self.is_alive

    def send_signal(self, signal_number: signal.Signals) -> bool:
        """Signal this process and no later owner of its pid. False if it has ended."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(pidfd, signal_number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def this_process() -> ProcessIdentity:
    """The identity of this process. Raises ProcessLookupError if it is not in /proc."""
    identity = ProcessIdentity.of_pid(os.getpid())
    if identity is None:
        raise ProcessLookupError("this process is not in /proc")
    return identity


def job_processes(job_id: str) -> list[ProcessIdentity]:
    """Every live process of a job, without its supervisor."""
    return [process for process, environment in _processes_naming(job_id) if environment.get(JOB_VARIABLE) == job_id]


def engine_processes(job_id: str, supervisor: ProcessIdentity | None = None) -> list[ProcessIdentity]:
    """The processes of a job that torchrun gave a rank, without their children. With the live `supervisor` of the job
    only its descendants are searched, else all processes of the machine."""
    candidates = _processes_naming(job_id, _descendants(supervisor.pid) if supervisor else None)
    of_job = {p.pid: (p, e) for p, e in candidates if e.get(JOB_VARIABLE) == job_id and "RANK" in e}
    return [process for process, _ in of_job.values() if parent(process.pid) not in of_job]


def supervisors(job_id: str) -> list[ProcessIdentity]:
    """The live supervisor of a job: one process, or none."""
    return [
        process
        for process, environment in _processes_naming(job_id)
        if environment.get(SUPERVISOR_VARIABLE) == job_id and not environment.get(JOB_VARIABLE)
    ]


def parent(pid: int) -> int | None:
    """The pid of the parent; None if the process has ended."""
    fields = _stat_fields(pid)
    return int(fields[STAT_PARENT]) if fields else None


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None if the process has ended."""
    try:
        # The name of the program before the state is in brackets, and may contain spaces and brackets itself.
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _descendants(pid: int) -> Iterator[int]:
    """The pids of a process's descendants."""
    for task in (PROC / str(pid) / "task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _processes_naming(
    job_id: str, pids: Iterable[int] | None = None
) -> Iterator[tuple[ProcessIdentity, dict[str, str]]]:
    """The live processes with the job's name in their environment, and their environments: of these pids, or of all.
    Processes whose environment this user may not read are left out."""
    pid_names = map(str, pids) if pids is not None else (entry.name for entry in PROC.iterdir() if entry.name.isdigit())
    for folder in (PROC / name for name in pid_names):
        try:
            raw = (folder / "environ").read_bytes()
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
        process = ProcessIdentity.of_pid(int(folder.name)) if job_id.encode() in raw else None
        if process is not None:
            pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
            yield process, {name: value for name, _, value in pairs}
