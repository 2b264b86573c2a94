"""Job records: one JSON file per job in the state folder, written before the job starts.

A record says what was asked and what was last seen. Its terminal states never change. What of it is damaged is found
when it is read, so that whoever looks at many jobs is stopped by none.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from vidqa.contract import environment, files
from vidqa.contract.problem import Problem, ProblemError, control_characters
from vidqa.platforms import NAMES
from vidqa.platforms._base import State
from vidqa.platforms.problems import JOB_LAUNCH_BUSY, JOB_NOT_FOUND, JOB_RECORD_BROKEN, STATE_FOLDER_UNWRITABLE
from vidqa.platforms.processes import Identity

SCHEMA_VERSION = 1
LOCK_WAIT_S = 60.0
MOST_NUMBER = 1 << 53  # what any program reads exactly from JSON
PASSED, AT_LAUNCH, SKIPPED = "passed", "without decoding", "skipped"  # what `preflight` of a record is, where known


@dataclass(frozen=True)
class JobRecord:
    """`reference` is what the platform needs to find the job again; `inputs_fingerprint` covers data and model.

    A resumed run goes on in the log it had: this job's part begins at byte `log_start`. `failure` is {"class",
    "evidence"} of a job that failed; `retry_of` the job that this one was launched again for; `settings` what
    site.toml said of the platform; `preflight` whether it was checked before. `folder` is where it was launched from,
    and `sequence` counts the launches, whatever the clock says; a record of an earlier version has neither.
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
    sequence: int = 0
    folder: str = ""
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

    def is_of(self, folder: Path) -> bool:
        """Whether it was launched from this folder; an earlier version recorded the spec and the output alone."""
        if self.folder:
            return self.folder == str(folder)
        return any(Path(path).is_relative_to(folder) for path in (self.spec, self.output_dir))


def _types(kind: Any) -> tuple[type, ...]:
    """The classes that values of an annotated type may have; of what is inside a dict nothing."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return tuple(get_origin(each) or each for each in kinds)


_TYPES = {name: _types(kind) for name, kind in get_type_hints(JobRecord).items()}
_LAUNCHER = {name: _types(kind) for name, kind in get_type_hints(Identity).items()}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder() -> Path:
    return environment.state_folder() / "jobs"


def path_of(job_id: str) -> Path:
    return folder() / f"{job_id}.json"


def exit_file(job_id: str) -> Path:
    """Where a platform keeps how a job ended, once nothing of the job is left that could be asked."""
    return folder() / f"{job_id}.exit.json"


def read_exit(job_id: str) -> dict[str, Any]:
    """What the job's exit file says; nothing where there is none that can be read."""
    return files.read_object(exit_file(job_id))


def write_exit(job_id: str, left: dict[str, Any]) -> None:
    """Raises STATE_FOLDER_UNWRITABLE."""
    _write(exit_file(job_id), left)


def write(record: JobRecord) -> JobRecord:
    stamped = replace(record, updated=now())
    _write(path_of(record.job_id), stamped.as_dict())
    return stamped


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        files.write_json(path, value)
    except OSError as failed:
        raise STATE_FOLDER_UNWRITABLE.error(folder(), f"writing {path.name} failed: {failed}") from failed


def read(job_id: str) -> JobRecord:
    """The record of one job. Raises JOB_NOT_FOUND, JOB_RECORD_BROKEN."""
    if not re.fullmatch(r"[\w.-]+", job_id) or not os.path.lexists(path_of(job_id)):
        raise JOB_NOT_FOUND.error(job_id, f"there is no job {job_id!r} in {folder()}")
    return _parse(path_of(job_id))


def scan() -> tuple[list[JobRecord], list[Problem]]:
    """All records, the one launched last first, and a warning for each that cannot be read."""
    records, problems = [], []
    for name in names():
        try:
            records.append(_parse(path_of(name)))
        except ProblemError as broken:
            problems += [replace(problem, severity="warning") for problem in broken.problems]
    return sorted(records, key=lambda each: (each.sequence, each.created, each.job_id), reverse=True), problems


def names() -> list[str]:
    """The names of all jobs, also of those whose records cannot be read."""
    return sorted(path.stem for path in folder().glob("*.json") if not path.name.endswith(".exit.json"))


def last_sequence() -> int:
    """The number of the launch that was last; 0 where none has one."""
    found, _ = scan()
    return found[0].sequence if found else 0


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


def settings(record: JobRecord, model: type[Any] | None) -> Any:
    """What site.toml said of the job's platform, as its settings model; keys that only another version knows are left
    out. None for a platform without settings. Raises JOB_RECORD_BROKEN."""
    if model is None:
        return None
    known = {name: value for name, value in (record.settings or {}).items() if name in model.model_fields}
    try:
        return model.model_validate(known)
    except ValueError as wrong:
        message = f"its settings are none of {record.platform}: {str(wrong)[:500]}"
        raise JOB_RECORD_BROKEN.error(path_of(record.job_id), message) from wrong


def _parse(path: Path) -> JobRecord:
    try:
        raw = files.read_json(path)
        record = JobRecord(**{name: raw[name] for name in _TYPES if name in raw} | {"state": State(raw["state"])})
    except (OSError, ValueError, TypeError, KeyError) as broken:
        raise JOB_RECORD_BROKEN.error(path, f"{type(broken).__name__}: {str(broken)[:500]}") from broken
    wrong = wrong_fields(record) or ([] if path == path_of(record.job_id) else ["job_id"])
    if wrong:
        raise JOB_RECORD_BROKEN.error(path, f"these are not what they must be: {', '.join(wrong)}")
    return record


def wrong_fields(record: JobRecord) -> list[str]:
    """The fields of a record that are not of their type, or not in their range."""
    wrong = [name for name, types in _TYPES.items() if not isinstance(getattr(record, name), types)]
    return wrong or [name for name, sound in _sound(record) if not sound]


def _sound(record: JobRecord) -> Iterator[tuple[str, bool]]:
    """Of the fields that a type alone does not describe, whether they can be a job's."""
    yield "platform", record.platform in NAMES
    yield "spec_fingerprint", re.fullmatch(r"\w+", record.spec_fingerprint) is not None
    for name in ("run_dir", "output_dir"):
        text = str(getattr(record, name))
        yield name, Path(text).is_absolute() and not control_characters(text)
    for name in ("processes", "nodes", "gpus", "log_start", "sequence"):
        yield name, 0 <= getattr(record, name) < MOST_NUMBER
    yield "launcher", all(isinstance(record.launcher.get(name), types) for name, types in _LAUNCHER.items())
    failure = record.failure or {"class": "", "evidence": ""}
    yield "failure", all(isinstance(failure.get(name), str) for name in ("class", "evidence"))
