"""The cost of a run so far: the hours of its jobs and their GPUs.

Time in a queue is free, so the record of a job on a cluster has the spans in which it was observed running. Other jobs,
and jobs that were never observed, count from their launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from vidqa.jobs import records
from vidqa.jobs.platforms import job_store
from vidqa.jobs.platforms._base import State, instant
from vidqa.jobs.records import JobRecord


@dataclass(frozen=True)
class Cost:
    """The cost over all jobs of one run folder: running `seconds`, these times GPUs, and the number of jobs."""

    seconds: float
    gpu_seconds: float
    jobs: int


def cost_of(run_dir: str) -> Cost:
    """The cost of a run: its first job and all that continued it. Each process counts as one GPU."""
    run_records = [record for record in records.scan()[0] if record.run_dir == run_dir]
    seconds = [running_s(record) for record in run_records]
    gpus = [record.processes if record.gpus else 0 for record in run_records]
    return Cost(sum(seconds), sum(s * count for s, count in zip(seconds, gpus, strict=True)), len(run_records))


def running_s(record: JobRecord) -> float:
    """Seconds that a job ran, over all attempts of its platform."""
    spans, last = record.spans or ((record.created, ""),), _end_of(record)
    times = [(instant(since, last), instant(until, last)) for since, until in spans]
    return sum(max(0.0, (min(until, last) - since).total_seconds()) for since, until in times)


def updated_spans(record: JobRecord, state: State) -> tuple[tuple[str, str], ...]:
    """Update the running spans of a job on a platform with a queue, for the observed state."""
    *before, (since, until) = record.spans or (("", "over"),)
    if state == State.RUNNING and until:
        return (*record.spans, (_microseconds(), ""))
    return (*before, (since, _microseconds())) if state == State.PENDING and not until else record.spans


def _end_of(record: JobRecord) -> datetime:
    """The end of a job, as its platform recorded or as it was observed; now, for a running job."""
    now = datetime.now(UTC)
    if not record.state.is_terminal:
        return now
    observed = instant(record.updated, now)
    ended = job_store.read_exit(record.job_id).get("ended")
    return min(observed, instant(ended, observed)) if isinstance(ended, str) else observed


def _microseconds() -> str:
    return datetime.now(UTC).isoformat()
