"""Python API for jobs: submit, wait, cancel, continue from a checkpoint, compute the cost.

    job = submit("train", Path("trial-7.toml"), "slurm", Resources(nodes=2), ready=gate.ready)
    record = job.wait()

The state of a job is on disk. A killed program finds its job again with `attach(job_id)`, or by submitting the same
spec: without `new_run`, a spec with the same data, model and output folder has one job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core import files
from vidqa.core.actions import action as action_of_name
from vidqa.core.problem import Problem, raise_errors
from vidqa.core.run_folder import TRAINER, RunFolder, read_checkpoint
from vidqa.jobs import launch, records, watch
from vidqa.jobs.cost import Cost, cost_of
from vidqa.jobs.job_spec import spec_of
from vidqa.jobs.launch import Launched, Ready, unchecked
from vidqa.jobs.platforms._base import State
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources
from vidqa.planning.problems import RESUME_NO_CHECKPOINT
from vidqa.spec.keys import with_values


@dataclass(frozen=True)
class JobHandle:
    """A job by its id. `how` and `problems` are of its submission, as in `launch.Launched`."""

    job_id: str
    how: str = "attached"
    problems: tuple[Problem, ...] = ()

    def record(self) -> JobRecord:
        """State, exit code, failure and paths of the job, as observed now."""
        return watch.find(self.job_id)

    def progress(self) -> dict[str, Any]:
        """The engine's last status.json: step, total_steps, eta_s, message."""
        return self._run.read_status()

    def wait(self, timeout_s: float | None = None, show: Callable[[str], None] | None = None) -> JobRecord:
        """Wait for the end of the job, at most `timeout_s`; `show` gets each new piece of the log."""
        return watch.wait(self.record(), timeout_s, show)

    def cancel(self, grace_s: float = 300.0) -> JobRecord:
        """Ask the job to save and stop, kill it after `grace_s`, and return when it is over."""
        return watch.cancel(self.job_id, grace_s)

    def retry(self, site_file: Path | None = None, *, agreed: bool = False, ready: Ready = unchecked) -> JobHandle:
        """Continue in the same run folder, from the newest checkpoint, in a new job. If another job continues or has
        completed the run already, returns that job. `site_file` and the problems are those of launch.retry."""
        record = self.record()
        if later := watch.later_job(record):
            record = watch.observe(later)
            if record.state == State.COMPLETE or not record.state.is_terminal:
                return attach(record.job_id)
        return _handle(launch.retry(record, site_file, agreed=agreed, ready=ready))

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints of its run, the newest last."""
        return self._run.complete(self._run.checkpoints, TRAINER)

    def continue_from(
        self,
        checkpoint: Path,
        spec_path: Path,
        changes: dict[str, Any],
        resources: Resources | None = None,
        *,
        ready: Ready = unchecked,
    ) -> JobHandle:
        """Submit its spec with changed values at some dotted keys, as a new run that starts from this checkpoint: with
        train.max_num_steps = 12, step_8 is followed by 4 steps. The spec is written to `spec_path`.

        Raises RESUME_NO_CHECKPOINT for an incomplete checkpoint.
        """
        record = records.read(self.job_id)
        try:
            if (resuming := action_of_name(record.action).resuming) is None:
                raise ValueError(f"the action {record.action} has no checkpoints")
            read_checkpoint(checkpoint)
        except ValueError as broken:
            raise RESUME_NO_CHECKPOINT.error(checkpoint, str(broken), "name one of the job's `checkpoints`") from broken
        earlier = spec.load(spec_of(record), record.action)
        changed = with_values(earlier, {**changes, resuming.key: str(checkpoint.absolute())})
        files.write_text(spec_path, spec.dump(changed))
        return submit(record.action, spec_path, record.platform, resources, ready=ready)

    def cost(self) -> Cost:
        """The cost of its run so far, over all jobs of the run folder."""
        return cost_of(records.read(self.job_id).run_dir)

    @property
    def _run(self) -> RunFolder:
        return records.read(self.job_id).run


def submit(
    action: str,
    spec_path: Path,
    platform_name: str,
    resources: Resources | None = None,
    *,
    new_run: bool = False,
    restart: bool = False,
    ready: Ready = unchecked,
) -> JobHandle:
    """Start the job of a spec, or attach to its earlier job in any state. An earlier job that ended incomplete
    continues with `retry`; `restart` starts a new one. Raises ProblemError with every problem."""
    launched = launch.launch(
        action, spec_path, platform_name, resources, new_run=new_run, ended=not restart, ready=ready
    )
    return _handle(launched)


def completed(
    action: str, spec_path: Path, platform_name: str, resources: Resources | None = None, *, ready: Ready = unchecked
) -> JobHandle:
    """Complete the job of a spec: start it, wait for a running one, return a finished one, or resume a stopped one.
    Raises its problems."""
    job_resources = resources or Resources()
    handle = submit(action, spec_path, platform_name, job_resources, ready=ready)
    if handle.how == "ended":
        handle = handle.retry(agreed=job_resources.agreed, ready=ready)
    record = handle.wait()
    if record.state != State.COMPLETE:
        raise_errors(watch.problems_of(record))
    return handle


def attach(job_id: str) -> JobHandle:
    """Attach to a job that was submitted before. Raises JOB_NOT_FOUND, JOB_RECORD_BROKEN."""
    return JobHandle(records.read(job_id).job_id)


def _handle(launched: Launched) -> JobHandle:
    return JobHandle(launched.record.job_id, launched.how, tuple(launched.problems))
