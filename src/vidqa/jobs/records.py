"""Job records: one JSON file per job in the state folder, written before the job starts.

A record holds the request and the last observed state. Terminal states never change. Damage is detected when a record
is read, so that one damaged record does not stop a listing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from vidqa.core import files
from vidqa.core.cli import FILE_REFUSED, command
from vidqa.core.environment import jobs_folder
from vidqa.core.problem import Problem, ProblemError, control_characters
from vidqa.jobs.platforms import NAMES, job_store
from vidqa.jobs.platforms._base import Failure, Submitted
from vidqa.jobs.platforms.job_store import record_file
from vidqa.jobs.problems import JOB_NOT_FOUND, JOB_RECORD_BROKEN

SCHEMA_VERSION = 1
MOST_NUMBER = 1 << 53  # the largest integer that every JSON reader represents exactly
PASSED, AT_LAUNCH, SKIPPED = "passed", "without decoding", "skipped"  # of `preflight` in a record


@dataclass(frozen=True, kw_only=True)
class JobRecord(Submitted):
    """The record of a job. `inputs_fingerprint` covers data and model. A resumed run appends to its log. `failure` is
    {"class", "evidence"} of a failed job; `retry_of` is the job that this one retries; `preflight` the kind of check
    before it. `requested_gpus` are those of --gpus, which a retry repeats; None without the option. `folder` is the
    working folder of the launch, and `sequence` numbers the launches independently of the clock; records of earlier
    versions have none of the three. `spans` are [since, until] of each span in which a job on a platform with a queue
    was observed running; `until` is empty for an open span."""

    platform: str
    action: str
    spec: str
    spec_fingerprint: str
    inputs_fingerprint: str
    output_dir: str
    model: str
    processes: int
    sequence: int = 0
    folder: str = ""
    updated: str = ""
    parent: str | None = None
    gpus: int = 0
    requested_gpus: int | None = None
    devices: tuple[str, ...] | None = None  # as in Job
    image: str | None = None
    preflight: str = ""
    retry_of: str | None = None
    failure: Failure | None = None
    spans: tuple[tuple[str, str], ...] = ()
    schema_version: int = SCHEMA_VERSION

    def is_of(self, folder: Path) -> bool:
        """Whether it was launched from this folder; records of an earlier version have only the spec and the output
        folder."""
        if self.folder:
            return self.folder == str(folder)
        return any(Path(path).is_relative_to(folder) for path in (self.spec, self.output_dir))


def write(record: JobRecord) -> JobRecord:
    stamped = replace(record, updated=files.now())
    job_store.write(record_file(record.job_id), asdict(stamped))
    return stamped


def read(job_id: str) -> JobRecord:
    """The record of one job. Raises JOB_NOT_FOUND, JOB_RECORD_BROKEN, FILE_REFUSED."""
    if job_id not in names():
        remedy = f"list the jobs: {command('jobs', 'list')}"
        raise JOB_NOT_FOUND.error(job_id, f"there is no job {job_id!r} in {jobs_folder()}", remedy)
    return _parse(record_file(job_id))


def scan(job_ids: Iterable[str] | None = None) -> tuple[list[JobRecord], list[Problem]]:
    """The records of these jobs, or all, the last launched first, and a warning for each unreadable one."""
    records, problems = [], []
    for name in names() if job_ids is None else job_ids:
        try:
            records.append(_parse(record_file(name)))
        except ProblemError as broken:
            problems += [replace(problem, severity="warning") for problem in broken.problems]
    return sorted(records, key=lambda record: (record.sequence, record.created, record.job_id), reverse=True), problems


def names() -> list[str]:
    """The names of all jobs, including those with unreadable records. Raises FILE_REFUSED."""
    try:
        entries = os.listdir(jobs_folder())
    except FileNotFoundError:
        return []
    except OSError as refused:
        message = f"it cannot be read: {refused.strerror}"
        raise FILE_REFUSED.error(jobs_folder(), message, job_store.OTHER_FOLDER) from refused
    jobs = [name for name in entries if name.endswith(".json") and not name.endswith(".exit.json")]
    return sorted(name.removesuffix(".json") for name in jobs)


def last_sequence() -> int:
    """The number of the last launch; 0 without any."""
    newest_first, _ = scan()
    return newest_first[0].sequence if newest_first else 0


def update(job_id: str, *, first: Callable[[], None] | None = None, **changes: Any) -> JobRecord:
    """Change a record, unless its state is terminal. `first` is called just before, under the lock of records."""
    with job_store.lock("records"):
        record = read(job_id)
        if record.state.is_terminal:
            return record
        if first:
            first()
        return write(replace(record, **changes))


def _parse(path: Path) -> JobRecord:
    """The parsed record, from a cache if the file has not changed since this process read it."""
    try:
        status = os.stat(path)
    except OSError as missing:
        raise JOB_RECORD_BROKEN.error(path, f"it cannot be read: {missing}") from missing
    return _parsed(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@lru_cache(maxsize=100_000)
def _parsed(path: Path, _stamp: tuple[int, ...]) -> JobRecord:
    try:
        record = msgspec.convert(files.read_json(path), JobRecord)
    except (OSError, ValueError, msgspec.ValidationError) as broken:
        raise JOB_RECORD_BROKEN.error(path, f"{type(broken).__name__}: {str(broken)[:500]}") from broken
    wrong = [name for name, sound in _ranges(record) if not sound]
    wrong += [] if path == record_file(record.job_id) else ["job_id"]
    if wrong:
        raise JOB_RECORD_BROKEN.error(path, f"invalid fields: {', '.join(wrong)}")
    return record


def _ranges(record: JobRecord) -> Iterator[tuple[str, bool]]:
    """The fields with value constraints beyond their type, and whether they hold."""
    yield "platform", record.platform in NAMES
    yield "spec_fingerprint", re.fullmatch(r"\w+", record.spec_fingerprint) is not None
    for name in ("run_dir", "output_dir"):
        text = str(getattr(record, name))
        yield name, Path(text).is_absolute() and not control_characters(text)
    for name in ("processes", "nodes", "gpus", "log_start", "sequence"):
        yield name, 0 <= getattr(record, name) < MOST_NUMBER
