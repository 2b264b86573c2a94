"""The conformance suite on this machine."""

from __future__ import annotations

import signal

import pytest

from tests.platforms.conformance import *  # noqa: F403
from tests.platforms.conformance import Rig
from vidqa.jobs.platforms._base import Rendered
from vidqa.jobs.platforms.processes import PROC, engine_processes, job_processes, supervisors
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources


def processes(record: JobRecord) -> list[int]:
    return [process.pid for process in [*supervisors(record.job_id), *job_processes(record.job_id)]]


def shown(record: JobRecord) -> str:
    """What anyone on the machine sees of the job's processes."""
    return "\n".join((PROC / str(pid) / "cmdline").read_text() for pid in processes(record))


def lose(record: JobRecord) -> None:
    for process in [*supervisors(record.job_id), *job_processes(record.job_id)]:
        process.send_signal(signal.SIGKILL)


def ran(record: JobRecord, rendered: Rendered) -> None:
    pid = engine_processes(record.job_id)[0].pid
    assert (PROC / str(pid) / "cmdline").read_text().split("\0")[:-1] == list(rendered.command)
    environment = (PROC / str(pid) / "environ").read_text().split("\0")
    assert all(f"{name}={value}" in environment for name, value in rendered.environment.items())


RIG = Rig("local", Resources(), lambda record: list(map(str, job_processes(record.job_id))), shown, lose, ran)


@pytest.fixture
def rig() -> Rig:
    return RIG
