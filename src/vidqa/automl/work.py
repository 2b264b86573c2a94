"""The jobs of a study: each piece of work has one, whatever became of the controller that submitted it.

A controller that was killed between two lines finds the same job again: a spec in a folder of its own has one job. What
its machine or platform ended is tried again, and counts for no trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from vidqa.contract.cli import note
from vidqa.contract.problem import ProblemError
from vidqa.jobs import cost, failure
from vidqa.jobs.api import JobHandle, attach
from vidqa.jobs.launch import Ready
from vidqa.jobs.records import JobRecord
from vidqa.platforms._base import INFRASTRUCTURE, State
from vidqa.automl.history import History, Work
from vidqa.automl.journal import Event
from vidqa.automl.places import Places
from vidqa.automl.settings import Limits
from vidqa.automl.silence import Silence
from vidqa.automl.study_problems import STUDY_INTERRUPTED

AGAIN_S = 10.0  # before a submission that its platform refused is tried again
PRUNE_GRACE_S, STOP_GRACE_S = 5.0, 120.0
CANCELED, HANGS = "canceled", "hangs"
# From the first step of a job until another one may join it on a GPU. Jobs that were started together would end
# together, and the GPU would wait for all of them; so one is ahead of the other by its start and about as much as a
# job takes to end.
AHEAD_S = 15.0


class Append(Protocol):
    def __call__(self, event: str, **fields: Any) -> Event: ...


class Jobs:
    """`append` writes to the journal and lets the history know."""

    def __init__(self, history: History, append: Append, limits: Limits, ready: Ready, places: Places) -> None:
        self.history, self.append, self.retries, self.ready = history, append, limits.retries, ready
        self.silence = Silence(limits.silent_hours * 3600)
        self.places = places
        self.not_before: dict[str, float] = {}  # by work, on the monotonic clock
        self.refused: dict[str, int] = {}
        self.seen: set[str] = set()  # works that this controller saw running
        self.stepping: dict[str, float] = {}  # by job, when its first step was seen, on the monotonic clock

    def look(self, name: str, processes: int, submit: Callable[[], JobHandle]) -> Event | None:
        """How a piece of work ended; None while it runs. It is submitted where it has no job yet, as soon as there are
        GPUs for its processes.

        Raises STUDY_INTERRUPTED where its platform ends it too often.
        """
        known = self.history.work.get(name)
        if known and known.ended:
            return known.ended
        if known is None:
            gpus = self.places.free(self._taken(), processes, self._beginning())
            if gpus is not None and time.monotonic() >= self.not_before.get(name, 0.0):
                self._submit(name, submit, gpus)
            return None
        record = attach(known.job_id).record()
        if not record.state.is_terminal:
            self.seen.add(name)
            self._see_first_step(known.job_id)
            return self._hangs(name, record) if self.silence.is_over(record) else None
        if record.state == State.COMPLETE:
            return self._end(name, record, None)
        if record.state == State.CANCELED and name in self.seen:
            return self._end(name, record, {"class": CANCELED, "evidence": "its job was cancelled by somebody"})
        if _may_go_on(record):
            self._again(name, known, record)
            return None
        return self._end(name, record, _failure(record))

    def _hangs(self, name: str, record: JobRecord) -> Event:
        why = f"it wrote nothing for {self.silence.limit_s / 3600:g} hours (limits.silent_hours)"
        note(f"{name} hangs: {why}")
        return self._end(name, attach(record.job_id).cancel(PRUNE_GRACE_S), {"class": HANGS, "evidence": why})

    def _taken(self) -> list[tuple[str, int]]:
        return [(gpu, work.places) for _, work in self.open_work() for gpu in work.gpus]

    def _beginning(self) -> set[str]:
        """GPUs that are to be shared, on which a job has not taken steps for long enough to be ahead of another."""
        if self.places.each == 1:
            return set()
        return {gpu for _, work in self.open_work() if not self._is_ahead(work.job_id) for gpu in work.gpus}

    def _is_ahead(self, job_id: str) -> bool:
        now = time.monotonic()
        return now - self.stepping.get(job_id, now) >= AHEAD_S

    def _see_first_step(self, job_id: str) -> None:
        """At once, not when another job wants to join: that one would wait for as long again."""
        if self.places.each > 1 and job_id not in self.stepping and attach(job_id).progress().get("step"):
            self.stepping[job_id] = time.monotonic()

    def _submit(self, name: str, submit: Callable[[], JobHandle], gpus: list[str]) -> None:
        try:
            with self.places.only(gpus):
                job = submit()
        except ProblemError as refused:
            why = failure.classify(refused.exit_code, str(refused), refused.problems, "")
            if why["class"] != INFRASTRUCTURE:
                fields = {"state": State.ERROR, "job_id": "", "run_dir": "", "seconds": 0.0, "gpu_seconds": 0.0}
                self.append("ended", work=name, failure=why, **fields)
                return
            self.refused[name] = count = self.refused.get(name, 0) + 1
            if count > self.retries:
                raise STUDY_INTERRUPTED.error(name, f"it was refused {count} times: {why['evidence']}") from refused
            note(f"{name} could not be submitted and is tried again: {why['evidence']}")
            self.not_before[name] = time.monotonic() + AGAIN_S
            return
        self.append("submitted", work=name, job_id=job.job_id, how=job.how, gpus=gpus, places=self.places.each)

    def _again(self, name: str, known: Work, record: JobRecord) -> None:
        why = _failure(record)
        if time.monotonic() < self.not_before.get(name, 0.0):
            return
        asked = record.cancel_requested is not None  # by `stop`: going on is no sign of trouble
        if known.retries >= self.retries and not asked:
            raise STUDY_INTERRUPTED.error(
                name, f"job {record.job_id} ended {known.retries + 1} times: {why['evidence']}"
            )
        try:
            with self.places.only(known.gpus):
                job = attach(known.job_id).retry(ready=self.ready)
        except ProblemError as refused:
            self.not_before[name] = time.monotonic() + AGAIN_S
            self.refused[name] = count = self.refused.get(name, 0) + 1
            if count > self.retries:
                raise STUDY_INTERRUPTED.error(name, f"it cannot be tried again: {refused}") from refused
            return
        note(f"{name} goes on as job {job.job_id}: {why['evidence']}")
        self.append("retried", work=name, job_id=job.job_id, why="" if asked else why["evidence"])

    def _end(self, name: str, record: JobRecord, why: dict[str, str] | None) -> Event:
        spent, known = cost.cost_of(record.run_dir), self.history.work.get(name)
        places = known.places if known else 1  # of a GPU that others use, too, a job has its part
        return self.append(
            "ended",
            work=name,
            state=str(record.state),
            job_id=record.job_id,
            run_dir=record.run_dir,
            seconds=round(spent.seconds, 3),
            gpu_seconds=round(spent.gpu_seconds / places, 3),
            failure=why,
        )

    def open_work(self) -> list[tuple[str, Work]]:
        """What has a job and has not been seen to end."""
        return [(name, work) for name, work in self.history.work.items() if work.job_id and not work.ended]

    def gpu_seconds(self) -> float:
        """Of all jobs, those that run included."""
        open_jobs = [(attach(work.job_id).record(), work.places) for _, work in self.open_work()]
        return self.history.gpu_seconds + sum(
            cost.running_s(record) * (record.processes if record.gpus else 0) / places for record, places in open_jobs
        )

    def give_up(self, prefix: str) -> None:
        """End the jobs of works whose name begins so; nobody goes on with them."""
        for name, work in self.open_work():
            if name.startswith(prefix):
                record = attach(work.job_id).cancel(PRUNE_GRACE_S)
                self._end(name, record, {"class": CANCELED, "evidence": "the study gave it up"})

    def stop(self) -> None:
        """Let every job save and stop, at the same time; a controller that is started again goes on with them."""
        running = [work.job_id for _, work in self.open_work()]
        if running:
            with ThreadPoolExecutor(len(running)) as pool:
                list(pool.map(lambda job_id: attach(job_id).cancel(STOP_GRACE_S), running))


def _may_go_on(record: JobRecord) -> bool:
    """Whether it was its machine, its platform, or `stop` that ended a job, not what it computed."""
    if record.state in (State.STOPPED, State.CANCELED):
        return True
    return (record.failure or {}).get("class") == INFRASTRUCTURE


def _failure(record: JobRecord) -> dict[str, str]:
    return record.failure or {"class": str(record.state).lower(), "evidence": record.message or str(record.state)}
