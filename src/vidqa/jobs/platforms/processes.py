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


@dataclass(frozen=True)
class Identity:
    """A process. `started` is in clock ticks since `boot`; on another `host` its state is unknown."""

    pid: int
    started: int
    boot: str
    host: str

    @staticmethod
    def of_pid(pid: int) -> Identity | None:
        """The live process with this pid; None if it has ended or is a zombie."""
        if (fields := _stat(pid)) is None or fields[0] in "ZX":
            return None
        return Identity(pid, int(fields[19]), boot_id(), socket.gethostname())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_alive(self) -> bool:
        return Identity.of_pid(self.pid) == self

    @property
    def may_be_alive(self) -> bool:
        """Whether it is alive, or on another machine and thus unknown."""
        return self.host != socket.gethostname() or self.is_alive

    def send(self, number: signal.Signals) -> bool:
        """Signal this process and no later owner of its pid; False if it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def this_process() -> Identity:
    identity = Identity.of_pid(os.getpid())
    if identity is None:
        raise ProcessLookupError("this process is not in /proc")
    return identity


def job_processes(job_id: str) -> list[Identity]:
    """Every live process of a job but its supervisor."""
    return [process for process, environment in _processes(job_id) if environment.get(JOB_VARIABLE) == job_id]


def engine_processes(job_id: str, below: Identity | None = None) -> list[Identity]:
    """The processes of a job with a rank from torchrun, without their children. While its supervisor lives they are
    `below` that one: the few that it started are looked at instead of every process of the machine."""
    candidates = _processes(job_id, _descendants(below.pid) if below else None)
    of_job = {p.pid: (p, e) for p, e in candidates if e.get(JOB_VARIABLE) == job_id and "RANK" in e}
    return [process for process, _ in of_job.values() if parent(process.pid) not in of_job]


def supervisors(job_id: str) -> list[Identity]:
    """The supervisor of a job, as a list, since it may be gone."""
    return [
        process
        for process, environment in _processes(job_id)
        if environment.get(SUPERVISOR_VARIABLE) == job_id and not environment.get(JOB_VARIABLE)
    ]


def parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str] | None:
    """What /proc says of a process, from its state on; None where it is gone."""
    try:
        # The name of the program, in brackets before that, may hold spaces and brackets itself.
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _descendants(pid: int) -> Iterator[int]:
    """The children of a process, theirs, and so on."""
    for task in (PROC / str(pid) / "task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _processes(job_id: str, pids: Iterable[int] | None = None) -> Iterator[tuple[Identity, dict[str, str]]]:
    """The live processes with the job's name in their environment, if we may read it: of these, or of all."""
    numbers = map(str, pids) if pids is not None else (entry.name for entry in PROC.iterdir() if entry.name.isdigit())
    for folder in (PROC / number for number in numbers):
        try:
            raw = (folder / "environ").read_bytes()
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
        process = Identity.of_pid(int(folder.name)) if job_id.encode() in raw else None
        if process is not None:
            pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
            yield process, {name: value for name, _, value in pairs}
