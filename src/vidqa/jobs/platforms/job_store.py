"""Files of jobs in the state folder: exit files, logs that a cluster deletes, and locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from vidqa.core import files
from vidqa.core.cli import refused_writes
from vidqa.core.environment import jobs_folder
from vidqa.core.locks import BUSY, locked
from vidqa.core.problem import ProblemError

LOCK_WAIT_S = 60.0
OTHER_FOLDER = "free space there or grant access to it; for new jobs only, VIDQA_STATE_DIR names another folder"


def record_file(job_id: str) -> Path:
    return jobs_folder() / f"{job_id}.json"


def exit_file(job_id: str) -> Path:
    """The file in which a platform stores the end of a job, for when the job itself is gone."""
    return jobs_folder() / f"{job_id}.exit.json"


def read_exit(job_id: str) -> dict[str, Any]:
    """The contents of the job's exit file; empty if it is missing or unreadable."""
    return files.read_object(exit_file(job_id))


def write_exit(job_id: str, ending: dict[str, Any]) -> bool:
    """Write the job's exit file. Returns whether it is written: a job also ends while its disk is full."""
    try:
        write(exit_file(job_id), ending)
    except ProblemError:
        return False
    return True


def write(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file of the state folder. Raises FILE_REFUSED."""
    with refused_writes(jobs_folder(), OTHER_FOLDER):
        files.write_json(path, value)


@contextmanager
def lock(name: str) -> Iterator[None]:
    """A lock among all processes, released by the system when its holder dies. Raises BUSY, FILE_REFUSED."""
    with ExitStack() as held:
        with refused_writes(jobs_folder(), OTHER_FOLDER):
            jobs_folder().mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(jobs_folder() / f".{name}.lock", wait_s=LOCK_WAIT_S, busy=BUSY))
        yield
