"""The jobs of an AutoML study, their GPUs on this machine, and the detection of jobs that hang.

The unit is a `Work`: one training or evaluation of a trial, named after its folder in the study. A work has one job,
which the next controller finds through the journal if a controller was killed. A job that its machine or platform ended
is retried; that is not a failure of the trial.

On this machine a job gets its GPUs exclusively, or shares them with as many jobs as the settings allow, through
CUDA_VISIBLE_DEVICES. On a cluster the scheduler assigns GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path

from vidqa.automl.history import Event, History, Work
from vidqa.automl.problems import STUDY_INTERRUPTED
from vidqa.automl.settings import ON_THIS_MACHINE, Limits
from vidqa.core import environment
from vidqa.core.cli import note
from vidqa.core.files import size_and_mtime
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import METRICS
from vidqa.jobs import cost, failure
from vidqa.jobs.api import JobHandle, attach
from vidqa.jobs.launch import Ready
from vidqa.jobs.platforms import local
from vidqa.jobs.platforms._base import INFRASTRUCTURE, Failure, State
from vidqa.jobs.records import JobRecord

RESUBMIT_S = 10.0  # delay before a refused submission is repeated
PRUNE_GRACE_S, STOP_GRACE_S = 5.0, 120.0
CANCELED, HANGS = "canceled", "hangs"
Append = Callable[..., Event]  # append(event, **fields) writes to the journal and folds into the history
# Delay from the first step of a job until another may start on its shared GPU. Jobs that start together end together,
# and the GPU is idle while all of them save; this is about the time that a job takes to end.
STAGGER_S = 15.0


class Jobs:
    """Submits, polls, retries and cancels the jobs of a study. `ready` runs the checks before a launch."""

    def __init__(self, history: History, append: Append, limits: Limits, ready: Ready, gpus: GpuAllocator) -> None:
        self.history, self.append, self.retries, self.ready = history, append, limits.retries, ready
        self.hangs = HangDetection(limits.silent_hours * 3600)
        self.gpus = gpus
        self.not_before: dict[str, float] = {}  # by work, on the monotonic clock: earliest time of the next submission
        self.refusals: dict[str, int] = {}  # by work, the total
        self.running: set[str] = set()  # works that this controller saw running
        self.first_steps: dict[str, float] = {}  # by job, on the monotonic clock

    def poll(self, name: str, processes: int, submit: Callable[[], JobHandle]) -> Event | None:
        """Advance the work `name`, and return its end event; None until it has ended. Work without a job is submitted
        once GPUs are free for its processes.

        Raises STUDY_INTERRUPTED if the platform has refused or ended it more often than limits.retries allows.
        """
        work = self.history.work.get(name)
        if work and work.ended:
            return work.ended
        if work is None:
            gpus = self.gpus.available(self.used_gpus(), processes, self._starting_gpus())
            if gpus is not None and time.monotonic() >= self.not_before.get(name, 0.0):
                self._submit(name, submit, gpus)
            return None
        record = attach(work.job_id).record()
        if not record.state.is_terminal:
            self.running.add(name)
            self._note_first_step(work.job_id)
            if not self.hangs.is_hanging(record):
                return None
            why = f"it wrote nothing for {self.hangs.limit_s / 3600:g} hours (limits.silent_hours)"
            note(f"{name} hangs: {why}")
            return self._end(name, attach(record.job_id).cancel(PRUNE_GRACE_S), {"class": HANGS, "evidence": why})
        if record.state == State.COMPLETE:
            return self._end(name, record, None)
        if record.state == State.CANCELED and name in self.running:
            return self._end(name, record, {"class": CANCELED, "evidence": "its job was cancelled by a user"})
        if _is_retryable(record):
            self._retry(name, work, record)
            return None
        return self._end(name, record, _failure(record))

    def used_gpus(self) -> list[tuple[str, int]]:
        """Each GPU of each running job, with the number of jobs that may share it."""
        return [(gpu, work.places) for _, work in self.unfinished_work() for gpu in work.gpus]

    def _starting_gpus(self) -> set[str]:
        """Shared GPUs on which a job started less than STAGGER_S ago, counted from its first step."""
        if self.gpus.jobs_per_gpu == 1:
            return set()
        now = time.monotonic()
        started = [(self.first_steps.get(work.job_id, now), work) for _, work in self.unfinished_work()]
        return {gpu for first_step, work in started if now - first_step < STAGGER_S for gpu in work.gpus}

    def _note_first_step(self, job_id: str) -> None:
        """Record the first step at every poll, not when another job is due: STAGGER_S would then begin too late."""
        if self.gpus.jobs_per_gpu > 1 and job_id not in self.first_steps and attach(job_id).progress().get("step"):
            self.first_steps[job_id] = time.monotonic()

    def _submit(self, name: str, submit: Callable[[], JobHandle], gpus: list[str]) -> None:
        try:
            with self.gpus.visible(gpus):
                job = submit()
        except ProblemError as refused:
            cause = failure.classify(refused.exit_code, str(refused), refused.problems, "")
            if cause["class"] != INFRASTRUCTURE:
                fields = {"state": State.ERROR, "job_id": "", "run_dir": "", "seconds": 0.0, "gpu_seconds": 0.0}
                self.append("ended", work=name, failure=cause, **fields)
                return
            count = self._count_refusal(name)
            if count > self.retries:
                raise STUDY_INTERRUPTED.error(name, f"it was refused {count} times: {cause['evidence']}") from refused
            note(f"{name} could not be submitted and is retried: {cause['evidence']}")
            return
        self.append("submitted", work=name, job_id=job.job_id, how=job.how, gpus=gpus, places=self.gpus.jobs_per_gpu)

    def _retry(self, name: str, work: Work, record: JobRecord) -> None:
        cause = _failure(record)
        if time.monotonic() < self.not_before.get(name, 0.0):
            return
        by_stop = record.cancel_requested is not None  # a stop by `stop` does not count as a retry
        if work.retries >= self.retries and not by_stop:
            message = f"job {record.job_id} ended {work.retries + 1} times: {cause['evidence']}"
            raise STUDY_INTERRUPTED.error(name, message)
        try:
            with self.gpus.visible(work.gpus):
                job = attach(work.job_id).retry(ready=self.ready)
        except ProblemError as refused:
            if self._count_refusal(name) > self.retries:
                raise STUDY_INTERRUPTED.error(name, f"it cannot be retried: {refused}") from refused
            return
        note(f"{name} continues as job {job.job_id}: {cause['evidence']}")
        self.append("retried", work=name, job_id=job.job_id, why="" if by_stop else cause["evidence"])

    def _count_refusal(self, name: str) -> int:
        """Count a refusal by the platform and delay the next attempt. Returns the total of refusals."""
        self.not_before[name] = time.monotonic() + RESUBMIT_S
        self.refusals[name] = self.refusals.get(name, 0) + 1
        return self.refusals[name]

    def _end(self, name: str, record: JobRecord, cause: Failure | None) -> Event:
        """Write the end of a work to the journal, with its cost. `cause` is None for success."""
        spent, work = cost.cost_of(record.run_dir), self.history.work.get(name)
        places = work.places if work else 1  # a job on a shared GPU is charged its share
        return self.append(
            "ended",
            work=name,
            state=str(record.state),
            job_id=record.job_id,
            run_dir=record.run_dir,
            seconds=round(spent.seconds, 3),
            gpu_seconds=round(spent.gpu_seconds / places, 3),
            failure=cause,
        )

    def unfinished_work(self) -> list[tuple[str, Work]]:
        """Name and work of every job whose end is not in the journal yet."""
        return [(name, work) for name, work in self.history.work.items() if work.job_id and not work.ended]

    def gpu_seconds(self) -> float:
        """GPU seconds of all jobs of the study, including running ones."""
        running = [(attach(work.job_id).record(), work.places) for _, work in self.unfinished_work()]
        spent = [cost.cost_of(record.run_dir).gpu_seconds / places for record, places in running]
        return self.history.gpu_seconds + sum(spent)

    def cancel_work(self, prefix: str) -> None:
        """Cancel the jobs of all works whose names begin with `prefix`, and end these works without retries."""
        for name, work in self.unfinished_work():
            if name.startswith(prefix):
                record = attach(work.job_id).cancel(PRUNE_GRACE_S)
                self._end(name, record, {"class": CANCELED, "evidence": "the study gave it up"})

    def stop(self) -> None:
        """Let all jobs save and stop, in parallel; their works stay open, and the next controller resumes them."""
        running = [work.job_id for _, work in self.unfinished_work()]
        if running:
            with ThreadPoolExecutor(len(running)) as pool:
                list(pool.map(lambda job_id: attach(job_id).cancel(STOP_GRACE_S), running))


class GpuAllocator:
    """Assigns this machine's GPUs to jobs. `names` are the GPUs that it may assign, as in CUDA_VISIBLE_DEVICES; empty
    on a platform whose scheduler assigns them. Up to `jobs_per_gpu` jobs share one."""

    def __init__(self, platform: str, gpus: int | None, jobs_per_gpu: int = 1) -> None:
        count = local.gpu_count() if platform in ON_THIS_MACHINE and gpus != 0 else 0
        self.names = (environment.visible_gpus() or [str(number) for number in range(count)])[:count]
        self.jobs_per_gpu = jobs_per_gpu

    def available(
        self, used: Sequence[tuple[str, int]], processes: int, starting: Collection[str] = ()
    ) -> list[str] | None:
        """GPUs for the processes of a job, the least loaded first; None if too few have room. A job with more processes
        than GPUs gets all of them: its launch reports the problem. `used` has (GPU, jobs that may share it) of each
        running job; that number may differ from `jobs_per_gpu`, because a controller may have been restarted with other
        settings. GPUs in `starting` are skipped."""
        load = {name: sum((Fraction(1, jobs) for gpu, jobs in used if gpu == name), Fraction()) for name in self.names}
        share = Fraction(1, self.jobs_per_gpu)
        free = [name for name in self.names if load[name] + share <= 1 and name not in starting]
        free.sort(key=load.__getitem__)
        return free[:processes] if len(free) >= min(processes, len(self.names)) else None

    def visible(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """A context inside which a launched job sees only these GPUs."""
        return environment.with_gpus(names) if self.names else nullcontext()


class HangDetection:
    """Detects running jobs that have not written log, status or metrics for longer than `limit_s`.

    Silence is measured from this process's first look at the files, not from their modification times: neither a jump
    of the clock nor a pause of the controller ends a job.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        # By job: state and marks of its files, and the time of their last change.
        self.observations: dict[str, tuple[object, float]] = {}

    def is_hanging(self, record: JobRecord) -> bool:
        """Whether a running job has been silent for too long. A queued job never hangs."""
        run_dir = Path(record.run_dir)
        files = (record.log, run_dir / "status.json", run_dir / METRICS)
        now, state = time.monotonic(), (record.state, *map(size_and_mtime, files))
        before, since = self.observations.get(record.job_id, (None, now))
        if state != before or record.state != State.RUNNING:
            self.observations[record.job_id] = state, now
            return False
        return now - since > self.limit_s


def _is_retryable(record: JobRecord) -> bool:
    """Whether the machine, the platform, or `stop` ended a job, and not an error of its own."""
    if record.state in (State.STOPPED, State.CANCELED):
        return True
    return record.failure is not None and record.failure["class"] == INFRASTRUCTURE


def _failure(record: JobRecord) -> Failure:
    return record.failure or {"class": str(record.state).lower(), "evidence": record.message or str(record.state)}
