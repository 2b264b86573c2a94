"""What a run has cost so far: the time that its jobs ran, and their GPUs.

A cluster's queue costs nothing. So when a job there begins to run, and when it has to wait again, is written down
beside its record as soon as somebody sees it. Any other job runs from its launch on, and so does one that nobody saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vidqa.contract import files
from vidqa.jobs import records
from vidqa.jobs.records import JobRecord
from vidqa.platforms import job_files
from vidqa.platforms._base import State


@dataclass(frozen=True)
class Cost:
    """Of all jobs of one run folder: the `seconds` they ran, the same times their GPUs, and how many they were."""

    seconds: float
    gpu_seconds: float
    jobs: int


def cost_of(run_dir: str) -> Cost:
    """The cost of a run: of its first job and of all that went on with it. A GPU is counted for each process."""
    found = [record for record in records.scan()[0] if record.run_dir == run_dir]
    seconds = [running_s(record) for record in found]
    gpus = [record.processes if record.gpus else 0 for record in found]
    return Cost(sum(seconds), sum(s * count for s, count in zip(seconds, gpus, strict=True)), len(found))


def running_s(record: JobRecord) -> float:
    """How long a job has run, over all attempts that its platform made of it."""
    spans = _spans(record.job_id) or [[record.created, ""]]
    last = _end_of(record)
    times = [(_instant(since, last), _instant(until, last)) for since, until in spans]
    return sum(max(0.0, (min(until, last) - since).total_seconds()) for since, until in times)


def write_span(job_id: str, state: State) -> None:
    """Keep that a job of a platform with a queue runs now, or waits. What cannot be kept, on a full disk, makes the
    cost less exact and nothing else."""
    spans = _spans(job_id)
    if state == State.RUNNING and (not spans or spans[-1][1]):
        spans.append([_microseconds(), ""])
    elif state == State.PENDING and spans and not spans[-1][1]:
        spans[-1][1] = _microseconds()
    else:
        return
    try:
        files.write_json(_file(job_id), {"spans": spans})
    except OSError:
        return


def _file(job_id: str) -> Path:
    return job_files.folder() / f".{job_id}.spans"


def _spans(job_id: str) -> list[list[str]]:
    """[since, until] of each time that a job was seen running, `until` empty for the last; none where none is kept."""
    kept: Any = files.read_object(_file(job_id)).get("spans")
    if not isinstance(kept, list) or not all(isinstance(each, list) and len(each) == 2 for each in kept):
        return []
    return kept if all(isinstance(time, str) for each in kept for time in each) else []


def _end_of(record: JobRecord) -> datetime:
    """When a job ended: as its platform wrote it down, or as it was seen; now, for one that is not over."""
    now = datetime.now(UTC)
    if not record.state.is_terminal:
        return now
    seen = _instant(record.updated, now)
    ended = job_files.read_exit(record.job_id).get("ended")
    return min(seen, _instant(ended, seen)) if isinstance(ended, str) else seen


def _instant(text: str, otherwise: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return otherwise
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _microseconds() -> str:
    return datetime.now(UTC).isoformat()
