"""Jobs for programs: submit, follow metrics, cancel, continue from a checkpoint, count the cost.

    job = submit("train", Path("trial-7.toml"), "slurm", Resources(nodes=2), ready=gate.ready)
    for row in job.metrics():
        if row.values.get("val/avg_loss", 0) > 3:
            job.cancel()

The state of a job is on disk. A program that was killed finds its job again with `attach(job_id)`, or by submitting the
same spec: without `new_run`, a spec with the same data, model and output folder has one job.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vidqa import spec
from vidqa.core import files
from vidqa.core.actions import action as action_of_name
from vidqa.core.problem import Problem, raise_errors
from vidqa.core.run_folder import METRICS, TRAINER, RunFolder, parse_metric, read_checkpoint
from vidqa.jobs import launch, records, watch
from vidqa.jobs.cost import Cost, cost_of
from vidqa.jobs.job_spec import spec_of
from vidqa.jobs.launch import Launched, Ready, unchecked
from vidqa.jobs.platforms import platform
from vidqa.jobs.platforms._base import State
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources
from vidqa.planning.problems import RESUME_NO_CHECKPOINT
from vidqa.spec.keys import with_values


# The metrics of a run as they are written: each row of metrics.jsonl once, from any position on. A resumed run rewrites
# the file without the steps that it repeats. So a position identifies the last row by content, and rows of repeated
# steps that the reader already has are skipped.
@dataclass(frozen=True)
class Position:
    """The position after a line of `length` bytes and checksum `crc32` that ends at byte `offset` and is row `row` of
    its `step`; the defaults are the beginning of the file. `dataclasses.asdict` gives JSON for a reader that restarts.
    """

    offset: int = 0
    length: int = 0
    crc32: int = 0
    step: int = -1
    row: int = 0


class Row(NamedTuple):
    """One event of a run, such as {"step": 3, "time": ..., "train/loss": ...}, and the position after it."""

    values: dict[str, Any]
    position: Position


BEGINNING = Position()


@dataclass(frozen=True)
class JobHandle:
    """A job by its id. `how` and `problems` are of its submission: see `launch.Launched`."""

    job_id: str
    how: str = "attached"
    problems: tuple[Problem, ...] = ()

    def record(self) -> JobRecord:
        """State, exit code, failure and paths of the job, as observed now."""
        return watch.find(self.job_id)

    def progress(self) -> dict[str, Any]:
        """The engine's last status.json: step, total_steps, eta_s, message."""
        return self._run.read_status()

    def new_metrics(self, after: Position = BEGINNING) -> list[Row]:
        """The rows written after a position, without waiting for more: for programs that watch many jobs."""
        return rows_after(self._run.path, after)

    def metrics(self, after: Position = BEGINNING) -> Iterator[Row]:
        """Every row after a position as it is written, until the job is over. Positions stay valid when a job continues
        in the same run folder (`retry`)."""
        while True:
            record = self.record()  # first: rows written before the end are still read
            for row in self.new_metrics(after):
                after = row.position
                yield row
            if record.state.is_terminal:
                return
            time.sleep(platform(record.platform).poll_s)

    def wait(self, timeout_s: float | None = None, show: Callable[[str], None] | None = None) -> JobRecord:
        """Wait for the end of the job, at most `timeout_s`; `show` gets each piece of the log as it is written."""
        return watch.wait(self.record(), timeout_s, show)

    def cancel(self, grace_s: float = 300.0) -> JobRecord:
        """Ask the job to save and stop, end it by force after `grace_s`, and return when it is over."""
        return watch.cancel(self.job_id, grace_s)

    def retry(self, site_file: Path | None = None, *, agreed: bool = False, ready: Ready = unchecked) -> JobHandle:
        """A job that continues in the same run folder, from the newest checkpoint. If another job continues the run
        already, or has completed it, that job. `site_file` and what it raises are those of launch.retry."""
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
        """Submit its spec with other values at some dotted keys, as a new run that starts from this checkpoint: with
        train.max_num_steps = 12, step_8 is followed by 4 steps. The spec is written to `spec_path`.

        Raises RESUME_NO_CHECKPOINT for a checkpoint that is not whole.
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
    """The job of a spec once it is complete: it is started, found running, found done, or goes on from where it
    stopped. Raises what is wrong with it."""
    job_resources = resources or Resources()
    handle = submit(action, spec_path, platform_name, job_resources, ready=ready)
    if handle.how == "ended":
        handle = handle.retry(agreed=job_resources.agreed, ready=ready)
    record = handle.wait()
    if record.state != State.COMPLETE:
        raise_errors(watch.problems_of(record))
    return handle


def attach(job_id: str) -> JobHandle:
    """A job that was submitted before. Raises JOB_NOT_FOUND, JOB_RECORD_BROKEN."""
    return JobHandle(records.read(job_id).job_id)


def rows_after(run_dir: Path, position: Position) -> list[Row]:
    """The rows after `position`; none where the file is missing. An incomplete last line is left for the next call, and
    a truncated line is skipped. Raises OSError."""
    try:
        with files.open_plain(run_dir / METRICS) as file:
            is_there = _is_there(file, position)
            end = file.seek(position.offset if is_there else 0)
            whole = file.read()
    except FileNotFoundError:
        return []
    step, row = (position.step, position.row) if is_there else (-1, 0)
    rows = []
    for line in whole[: whole.rfind(b"\n") + 1].splitlines(keepends=True):
        end += len(line)
        if (event := parse_metric(line)) is None:
            continue
        row = row + 1 if event["step"] == step else 1
        step = event["step"]
        if is_there or (step, row) > (position.step, position.row):
            rows.append(Row(event, Position(end, len(line), zlib.crc32(line), step, row)))
    return rows


def _is_there(file: BinaryIO, position: Position) -> bool:
    """Whether the file still has the line that was read last, at its offset."""
    file.seek(position.offset - position.length)
    return zlib.crc32(file.read(position.length)) == position.crc32


def _handle(launched: Launched) -> JobHandle:
    return JobHandle(launched.record.job_id, launched.how, tuple(launched.problems))
