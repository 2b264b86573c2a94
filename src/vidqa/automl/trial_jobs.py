"""The jobs of a study: each piece of work has one, whatever became of the controller that submitted it.

A spec in a folder of its own has one job, so that a controller finds the jobs of a killed one. A job that its machine
or platform ended is retried and counts for no trial.

On this machine each GPU goes to one job, or to as many as the settings say; a cluster's scheduler does this itself. A
job sees its GPUs in the CUDA_VISIBLE_DEVICES of its own environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from vidqa.automl.history import Event, History, Work
from vidqa.automl.problems import STUDY_INTERRUPTED
from vidqa.automl.settings import ON_THIS_MACHINE, Limits
from vidqa.core import environment
from vidqa.core.cli import note
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import METRICS
from vidqa.jobs import cost, failure
from vidqa.jobs.api import JobHandle, attach
from vidqa.jobs.launch import Ready
from vidqa.jobs.platforms import local
from vidqa.jobs.platforms._base import INFRASTRUCTURE, Failure, State
from vidqa.jobs.records import JobRecord

AGAIN_S = 10.0  # before a submission that its platform refused is repeated
PRUNE_GRACE_S, STOP_GRACE_S = 5.0, 120.0
CANCELED, HANGS = "canceled", "hangs"
# From the first step of a job until another one may join it on a GPU. Jobs started together would end together, and the
# GPU would wait for all of them; this is about the time that a job needs to end.
AHEAD_S = 15.0


class Append(Protocol):
    def __call__(self, event: str, **fields: Any) -> Event: ...


class Jobs:
    """`append` writes an event to the journal and the history."""

    def __init__(self, history: History, append: Append, limits: Limits, ready: Ready, gpus: GpuAllocator) -> None:
        self.history, self.append, self.retries, self.ready = history, append, limits.retries, ready
        self.hangs = HangDetection(limits.silent_hours * 3600)
        self.gpus = gpus
        self.not_before: dict[str, float] = {}  # by work, on the monotonic clock
        self.refusals: dict[str, int] = {}
        self.running: set[str] = set()  # works that this controller saw running
        self.first_steps: dict[str, float] = {}  # by job, on the monotonic clock

    def poll(self, name: str, processes: int, submit: Callable[[], JobHandle]) -> Event | None:
        """The end of a piece of work; None while it runs. Work without a job is submitted once GPUs are free for its
        processes.

        Raises STUDY_INTERRUPTED where its platform ends it too often.
        """
        work = self.history.work.get(name)
        if work and work.ended:
            return work.ended
        if work is None:
            gpus = self.gpus.free(self.used_gpus(), processes, self._starting_gpus())
            if gpus is not None and time.monotonic() >= self.not_before.get(name, 0.0):
                self._submit(name, submit, gpus)
            return None
        record = attach(work.job_id).record()
        if not record.state.is_terminal:
            self.running.add(name)
            self._note_first_step(work.job_id)
            if not self.hangs.is_over(record):
                return None
            why = f"it wrote nothing for {self.hangs.limit_s / 3600:g} hours (limits.silent_hours)"
            note(f"{name} hangs: {why}")
            return self._end(name, attach(record.job_id).cancel(PRUNE_GRACE_S), {"class": HANGS, "evidence": why})
        if record.state == State.COMPLETE:
            return self._end(name, record, None)
        if record.state == State.CANCELED and name in self.running:
            return self._end(name, record, {"class": CANCELED, "evidence": "its job was cancelled by somebody"})
        if _may_retry(record):
            self._retry(name, work, record)
            return None
        return self._end(name, record, _failure(record))

    def used_gpus(self) -> list[tuple[str, int]]:
        """The GPU of each running job, and how many such jobs share it."""
        return [(gpu, work.places) for _, work in self.open_work() for gpu in work.gpus]

    def _starting_gpus(self) -> set[str]:
        """Shared GPUs on which a job has not taken steps for long enough to be ahead of another."""
        if self.gpus.jobs_per_gpu == 1:
            return set()
        now = time.monotonic()
        open_work = [(self.first_steps.get(work.job_id, now), work) for _, work in self.open_work()]
        return {gpu for first_step, work in open_work if now - first_step < AHEAD_S for gpu in work.gpus}

    def _note_first_step(self, job_id: str) -> None:
        """At once, not when another job wants to join: that one would wait for as long again."""
        if self.gpus.jobs_per_gpu > 1 and job_id not in self.first_steps and attach(job_id).progress().get("step"):
            self.first_steps[job_id] = time.monotonic()

    def _submit(self, name: str, submit: Callable[[], JobHandle], gpus: list[str]) -> None:
        try:
            with self.gpus.only(gpus):
                job = submit()
        except ProblemError as refused:
            why = failure.classify(refused.exit_code, str(refused), refused.problems, "")
            if why["class"] != INFRASTRUCTURE:
                fields = {"state": State.ERROR, "job_id": "", "run_dir": "", "seconds": 0.0, "gpu_seconds": 0.0}
                self.append("ended", work=name, failure=why, **fields)
                return
            count = self._refused(name)
            if count > self.retries:
                raise STUDY_INTERRUPTED.error(name, f"it was refused {count} times: {why['evidence']}") from refused
            note(f"{name} could not be submitted and is tried again: {why['evidence']}")
            return
        self.append("submitted", work=name, job_id=job.job_id, how=job.how, gpus=gpus, places=self.gpus.jobs_per_gpu)

    def _retry(self, name: str, work: Work, record: JobRecord) -> None:
        why = _failure(record)
        if time.monotonic() < self.not_before.get(name, 0.0):
            return
        by_stop = record.cancel_requested is not None  # going on after `stop` is no sign of trouble
        if work.retries >= self.retries and not by_stop:
            message = f"job {record.job_id} ended {work.retries + 1} times: {why['evidence']}"
            raise STUDY_INTERRUPTED.error(name, message)
        try:
            with self.gpus.only(work.gpus):
                job = attach(work.job_id).retry(ready=self.ready)
        except ProblemError as refused:
            if self._refused(name) > self.retries:
                raise STUDY_INTERRUPTED.error(name, f"it cannot be tried again: {refused}") from refused
            return
        note(f"{name} goes on as job {job.job_id}: {why['evidence']}")
        self.append("retried", work=name, job_id=job.job_id, why="" if by_stop else why["evidence"])

    def _refused(self, name: str) -> int:
        """How often in all; the next attempt waits."""
        self.not_before[name] = time.monotonic() + AGAIN_S
        self.refusals[name] = self.refusals.get(name, 0) + 1
        return self.refusals[name]

    def _end(self, name: str, record: JobRecord, why: Failure | None) -> Event:
        spent, work = cost.cost_of(record.run_dir), self.history.work.get(name)
        places = work.places if work else 1  # a job on a shared GPU is charged its part
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
        """Works with a job whose end is not in the journal."""
        return [(name, work) for name, work in self.history.work.items() if work.job_id and not work.ended]

    def gpu_seconds(self) -> float:
        """Of all jobs, the running ones included."""
        running = [(attach(work.job_id).record(), work.places) for _, work in self.open_work()]
        spent = [cost.cost_of(record.run_dir).gpu_seconds / places for record, places in running]
        return self.history.gpu_seconds + sum(spent)

    def give_up(self, prefix: str) -> None:
        """End the jobs of all works with this prefix, for good."""
        for name, work in self.open_work():
            if name.startswith(prefix):
                record = attach(work.job_id).cancel(PRUNE_GRACE_S)
                self._end(name, record, {"class": CANCELED, "evidence": "the study gave it up"})

    def stop(self) -> None:
        """Let all jobs save and stop, at the same time; the next controller goes on with them."""
        running = [work.job_id for _, work in self.open_work()]
        if running:
            with ThreadPoolExecutor(len(running)) as pool:
                list(pool.map(lambda job_id: attach(job_id).cancel(STOP_GRACE_S), running))


class GpuAllocator:
    """`names` are the GPUs that a controller may assign, none where a scheduler does; `jobs_per_gpu` share one."""

    def __init__(self, platform: str, gpus: int | None, jobs_per_gpu: int = 1) -> None:
        count = local.gpu_count() if platform in ON_THIS_MACHINE and gpus != 0 else 0
        self.names = (environment.visible_gpus() or [str(number) for number in range(count)])[:count]
        self.jobs_per_gpu = jobs_per_gpu

    def free(self, used: Sequence[tuple[str, int]], processes: int, busy: Collection[str] = ()) -> list[str] | None:
        """GPUs for the processes of a job, the emptiest first; None where too few have room. A job that needs more than
        there are gets them all, and its launch reports the problem.

        `used` has for each running job its GPU and how many such jobs share it, which may differ from now: a controller
        may have been restarted with another number. A `busy` GPU gets no job now.
        """
        load = {name: sum((Fraction(1, jobs) for gpu, jobs in used if gpu == name), Fraction()) for name in self.names}
        free = [name for name in self.names if load[name] + Fraction(1, self.jobs_per_gpu) <= 1 and name not in busy]
        free.sort(key=load.__getitem__)
        return free[:processes] if len(free) >= min(processes, len(self.names)) else None

    def only(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """A launch inside the block sees these GPUs alone."""
        return environment.with_gpus(names) if self.names else nullcontext()


class HangDetection:
    """Finds jobs that run without writing log, status or metrics for longer than `limit_s`.

    It counts this process's own time, so that neither a clock that jumps nor a pause of the controller ends a job.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.observations: dict[str, tuple[object, float]] = {}  # by job: the marks of its files, and their time

    def is_over(self, record: JobRecord) -> bool:
        """Whether a running job has been silent for too long; a waiting one may be."""
        run_dir = Path(record.run_dir)
        files = (record.log, run_dir / "status.json", run_dir / METRICS)
        now, state = time.monotonic(), (record.state, *map(_file_mark, files))
        before, since = self.observations.get(record.job_id, (None, now))
        if state != before or record.state != State.RUNNING:
            self.observations[record.job_id] = state, now
            return False
        return now - since > self.limit_s


def _file_mark(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def _may_retry(record: JobRecord) -> bool:
    """Whether its machine, its platform, or `stop` ended a job, not what it computed."""
    if record.state in (State.STOPPED, State.CANCELED):
        return True
    return record.failure is not None and record.failure["class"] == INFRASTRUCTURE


def _failure(record: JobRecord) -> Failure:
    return record.failure or {"class": str(record.state).lower(), "evidence": record.message or str(record.state)}
