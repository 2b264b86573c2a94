"""Job records: one JSON file per job in the state folder, written before the job starts.

A record says what was asked and what was last seen. Its terminal states never change.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from vidqa import environment, files
from vidqa.platforms._base import State
from vidqa.platforms.problems import JOB_LAUNCH_BUSY, JOB_NOT_FOUND, JOB_RECORD_BROKEN, STATE_FOLDER_UNWRITABLE
from vidqa.problem import Problem, ProblemError

SCHEMA_VERSION = 1
LOCK_WAIT_S = 60.0
PASSED, AT_LAUNCH, SKIPPED = "passed", "without decoding", "skipped"  # what `preflight` of a record is, where known


@dataclass(frozen=True)
class JobRecord:
    """`reference` is what the platform needs to find the job again; `inputs_fingerprint` covers data and model.

    A resumed run goes on in the log it had: this job's part begins at byte `log_start`. `failure` is {"class",
    "evidence"} of a job that failed; `retry_of` the job that this one was launched again for; `settings` what
    site.toml said of the platform; `preflight` whether it was checked before.
    """

    job_id: str
    platform: str
    action: str
    spec: str
    spec_fingerprint: str
    inputs_fingerprint: str
    output_dir: str
    run_dir: str
    model: str
    processes: int
    created: str
    launcher: dict[str, Any]
    state: State = State.PENDING
    updated: str = ""
    parent: str | None = None
    nodes: int = 1
    gpus: int = 0
    image: str | None = None
    settings: dict[str, Any] | None = None
    preflight: str = ""
    retry_of: str | None = None
    failure: dict[str, str] | None = None
    reference: dict[str, Any] | None = None
    cancel_requested: str | None = None
    log_start: int = 0
    exit_code: int | None = None
    message: str = ""
    schema_version: int = SCHEMA_VERSION

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def log(self) -> Path:
        return Path(self.run_dir) / "log.txt"


_KINDS = get_type_hints(JobRecord)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder() -> Path:
    return environment.state_folder() / "jobs"


def path_of(job_id: str) -> Path:
    return folder() / f"{job_id}.json"


def exit_file(job_id: str) -> Path:
    """Where a platform keeps how a job ended, once nothing of the job is left that could be asked."""
    return folder() / f"{job_id}.exit.json"


def read_exit(job_id: str) -> dict[str, Any] | None:
    """What the job's exit file says; None while there is none."""
    try:
        return dict(json.loads(exit_file(job_id).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def write(record: JobRecord) -> JobRecord:
    stamped = replace(record, updated=now())
    try:
        files.write_json(path_of(record.job_id), stamped.as_dict())
    except OSError as failed:
        raise STATE_FOLDER_UNWRITABLE.error(folder(), f"writing a job record failed: {failed}") from failed
    return stamped


def read(job_id: str) -> JobRecord:
    """The record of one job; "latest" is the one created last. Raises JOB_NOT_FOUND, JOB_RECORD_BROKEN."""
    if job_id == "latest":
        found, _ = scan()
        if not found:
            raise JOB_NOT_FOUND.error(folder(), "there is no job yet", "launch one: python scripts/launch.py --help")
        return found[0]
    if not re.fullmatch(r"[\w.-]+", job_id) or not path_of(job_id).is_file():
        raise JOB_NOT_FOUND.error(job_id, f"there is no job {job_id!r} in {folder()}")
    return _parse(path_of(job_id))


def scan() -> tuple[list[JobRecord], list[Problem]]:
    """All records, newest first, and a warning for each that cannot be read."""
    records, problems = [], []
    for path in folder().glob("*.json"):
        if path.name.endswith(".exit.json"):
            continue
        try:
            records.append(_parse(path))
        except ProblemError as broken:
            problems += [replace(problem, severity="warning") for problem in broken.problems]
    return sorted(records, key=lambda record: (record.created, record.job_id), reverse=True), problems


def update(job_id: str, *, first: Callable[[], None] | None = None, **changes: Any) -> JobRecord:
    """Change a record, unless it has ended: what a terminal record says is kept. `first` is done just before, while
    nobody else can change it."""
    with lock("records"):
        record = read(job_id)
        if record.state.is_terminal:
            return record
        if first:
            first()
        return write(replace(record, **changes))


@contextmanager
def lock(name: str) -> Iterator[None]:
    """One holder at a time among all processes; given up by the system when its holder dies. Raises JOB_LAUNCH_BUSY."""
    path = folder() / f".{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    except OSError as failed:
        raise STATE_FOLDER_UNWRITABLE.error(folder(), f"the lock cannot be made: {failed}") from failed
    with handle:
        _acquire(handle.fileno(), path)
        yield


def _acquire(handle: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise JOB_LAUNCH_BUSY.error(path, f"not free after {LOCK_WAIT_S:.0f} s") from None
        time.sleep(0.02)


def _parse(path: Path) -> JobRecord:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        record = JobRecord(**{name: raw[name] for name in _KINDS if name in raw} | {"state": State(raw["state"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as broken:
        raise JOB_RECORD_BROKEN.error(path, f"{type(broken).__name__}: {str(broken)[:500]}") from broken
    wrong = [name for name, kind in _KINDS.items() if not _fits(getattr(record, name), kind)]
    if not wrong:
        wrong += [] if path == path_of(record.job_id) else ["job_id"]
        wrong += [] if record.failure is None or {"class", "evidence"} <= set(record.failure) else ["failure"]
        wrong += [] if files.is_writable(raw) else ["a text or number"]
    if wrong:
        raise JOB_RECORD_BROKEN.error(path, f"these are not what they must be: {', '.join(wrong)}")
    return record


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of an annotated type; of what is inside a dict, only that texts are texts."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if isinstance(value, dict) and dict[str, str] in kinds:
        return all(isinstance(text, str) for text in value.values())
    return isinstance(value, tuple(get_origin(each) or each for each in kinds))
