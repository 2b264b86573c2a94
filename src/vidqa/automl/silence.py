"""Notices jobs that run and do nothing: neither log, nor status, nor metrics have changed for a long time.

The time is this process's own, so that neither a clock that jumps nor a controller that was away ends a job.
"""

from __future__ import annotations

import time
from pathlib import Path

from vidqa.contract.run_folder import METRICS
from vidqa.jobs.records import JobRecord
from vidqa.platforms._base import State

WRITTEN = ("status.json", METRICS)


class Silence:
    """What each job had written when it was last looked at, and since when it is that."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.seen: dict[str, tuple[object, float]] = {}  # by job

    def is_over(self, record: JobRecord) -> bool:
        """Whether the job has been silent for longer than it may. One that waits for its turn may be."""
        now, written = time.monotonic(), (record.state, *map(_mark, _files(record)))
        before, since = self.seen.get(record.job_id, (None, now))
        if written != before or record.state != State.RUNNING:
            self.seen[record.job_id] = written, now
            return False
        return now - since > self.limit_s


def _files(record: JobRecord) -> list[Path]:
    return [record.log, *(Path(record.run_dir) / name for name in WRITTEN)]


def _mark(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
