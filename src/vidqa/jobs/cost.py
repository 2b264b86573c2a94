"""The cost of a run so far: the hours of its jobs and their GPUs.

Waiting in a queue costs nothing. So each observation of a job on a cluster records whether it runs or waits, beside the
job's record. Jobs elsewhere, and jobs never observed, count from their launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vidqa.core import files
from vidqa.core.environment import jobs_folder
from vidqa.jobs import records
from vidqa.jobs.platforms import job_store
from vidqa.jobs.platforms._base import State, instant
from vidqa.jobs.records import JobRecord


@dataclass(frozen=True)
class Cost:
    """Over all jobs of one run folder: `seconds` of running, the same times GPUs, and the number of jobs."""

    seconds: float
    gpu_seconds: float
    jobs: int


def cost_of(run_dir: str) -> Cost:
    """The cost of a run: of its first job and of all that continued it. Each process counts as one GPU."""
    run_records = [record for record in records.scan()[0] if record.run_dir == run_dir]
    seconds = [running_s(record) for record in run_records]
    gpus = [record.processes if record.gpus else 0 for record in run_records]
    return Cost(sum(seconds), sum(s * count for s, count in zip(seconds, gpus, strict=True)), len(run_records))


def running_s(record: JobRecord) -> float:
    """Seconds that a job ran, over all attempts of its platform."""
    spans = _spans(record.job_id) or [[record.created, ""]]
    last = _end_of(record)
    times = [(instant(since, last), instant(until, last)) for since, until in spans]
    return sum(max(0.0, (min(until, last) - since).total_seconds()) for since, until in times)


def write_span(job_id: str, state: State) -> None:
    """Record that a job of a platform with a queue runs now, or waits. A failure to write, as on a full disk, only
    makes the cost less exact."""
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
    return jobs_folder() / f".{job_id}.spans"


def _spans(job_id: str) -> list[list[str]]:
    """[since, until] of each span in which a job was seen running; `until` is empty for the last one."""
    spans: Any = files.read_object(_file(job_id)).get("spans")
    if not isinstance(spans, list) or not all(isinstance(span, list) and len(span) == 2 for span in spans):
        return []
    return spans if all(isinstance(time, str) for span in spans for time in span) else []


def _end_of(record: JobRecord) -> datetime:
    """When a job ended: as its platform recorded, or as it was observed; now, for a running job."""
    now = datetime.now(UTC)
    if not record.state.is_terminal:
        return now
    observed = instant(record.updated, now)
    ended = job_store.read_exit(record.job_id).get("ended")
    return min(observed, instant(ended, observed)) if isinstance(ended, str) else observed


def _microseconds() -> str:
    return datetime.now(UTC).isoformat()
