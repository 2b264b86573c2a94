"""Reporting of a run: metrics.jsonl, status.json, a progress line, and the trackers of the spec.

metrics.jsonl has all metrics; a tracker (wandb, tensorboard, through accelerate) copies them elsewhere, and never
ends a training: its first error becomes a warning; wandb continues offline if its server cannot be
reached, and a tracker that fails later is disabled.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from vidqa.core import environment
from vidqa.core._optional import require
from vidqa.core.cli import note
from vidqa.core.run_folder import RunFolder
from vidqa.engine.distributed import World
from vidqa.engine.problems import ENGINE_TRACKER_FAILED
from vidqa.spec.models import TrainSpec

NAMES = ("wandb", "tensorboard")
REACHED_S = 20.0  # seconds for wandb's server to answer; wandb itself needs twice that to give up
SENT_S = 60.0  # seconds at the end, for unsent data
Opener = Callable[[], Any]


class Progress:
    """The progress of a run from step `first` to `total`, a context manager. Without `reports`, as on other ranks
    than 0, it does nothing.

    A background thread writes and prints, in order: files are slow while a checkpoint is written, and no step must
    wait for them. Its exceptions are raised by the next call, or at the end of a block without exception.
    """

    def __init__(
        self, run: RunFolder, trackers: list[Tracker], first: int, total: int, noun: str = "step", reports: bool = True
    ) -> None:
        self.run, self.trackers, self.first, self.total, self.noun = run, trackers, first, total, noun
        self.started, self.reports = time.monotonic(), reports
        self.bar = _progress_bar(first, total) if reports and sys.stderr.isatty() else None
        self.writer = ThreadPoolExecutor(1, "progress")
        self.written: deque[Future[None]] = deque()
        if reports:
            run.write_status("RUNNING", step=first, total_steps=total, unless=("ERROR",))

    def log(self, step: int, values: dict[str, float], *, line: str = "") -> None:
        """Record values after `step` completed steps; `line` is the message for people."""
        eta = (time.monotonic() - self.started) / max(step - self.first, 1) * max(self.total - step, 0)
        self._later(partial(self._write, step, values, line, time.time(), eta))

    def say(self, text: str) -> None:
        self._later(partial(self.bar.console.print if self.bar is not None else note, text))

    def settle(self) -> None:
        """Wait until all earlier records are written: a checkpoint that is published later is never ahead of them."""
        for job in self.written:
            job.result()

    def _later(self, job: Callable[[], None]) -> None:
        if not self.reports:
            return
        while self.written and self.written[0].done():
            self.written.popleft().result()
        self.written.append(self.writer.submit(job))

    def _write(self, step: int, values: dict[str, float], line: str, at: float, eta: float) -> None:
        self.run.log_metrics(step, values, at)
        for tracker in self.trackers:
            tracker.log(values, step=step)
        # Another rank's error stays.
        self.run.write_status(
            "RUNNING", step=step, total_steps=self.total, eta_s=round(eta, 1), message=line, unless=("ERROR",)
        )
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=step, description=line)
        elif line:
            note(f"{self.noun} {step}/{self.total}  {line}  eta {_clock(eta)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.writer.shutdown(wait=True)
        if self.bar is not None:
            self.bar.stop()
        for tracker in self.trackers:
            tracker.finish()
        if kind is None:
            for job in self.written:
                job.result()


def open_progress(spec: TrainSpec, run: RunFolder, world: World, first: int, total: int) -> Progress:
    """Open the progress of a training, which rank 0 alone reports."""
    trackers = open_trackers(run, spec) if world.is_main else []
    return Progress(run, trackers, first, total, reports=world.is_main)


def open_evaluation(run: RunFolder, world: World, batches: int) -> Progress:
    """Open the progress of an evaluation, in batches of rank 0, which alone reports it."""
    return Progress(run, [], 0, batches, noun="batch", reports=world.is_main)


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


def _progress_bar(first: int, total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task("starting", completed=first, total=total)
    bar.start()
    return bar


def require_trackers(logging: Any) -> None:
    """Raise a problem, before the model is loaded, if a tracker of the spec is not installed."""
    for name in sorted(set(logging.logger) & set(NAMES)):
        require(name, name)


def open_trackers(run: RunFolder, spec: TrainSpec) -> list[Tracker]:
    """The trackers of `spec.logging.logger`, each with its openers in order of preference."""
    online, offline = (partial(_wandb, run, spec, mode=mode) for mode in ("online", "offline"))
    # Without a key wandb would prompt for one and block the job.
    ways = {
        "wandb": [online, offline] if environment.has("WANDB_API_KEY") else [offline],
        "tensorboard": [partial(_tensorboard, run)],
    }
    return [Tracker(name, ways[name], run) for name in spec.logging.logger if name in ways]


class Tracker:
    """One tracker; after a failure it does nothing."""

    def __init__(self, name: str, ways: Sequence[Opener], run: RunFolder) -> None:
        self.name, self.run = name, run
        self._inside: Any = None
        for number, opener in enumerate(ways, 1):
            self._inside = self._carried_out(opener, "it goes on offline" if number < len(ways) else "it is left alone")
            if self._inside is not None:
                break

    def log(self, values: dict[str, float], step: int) -> None:
        if self._inside is not None:
            self._carried_out(partial(self._inside.log, values, step=step), "it is left alone")

    def finish(self) -> None:
        if self._inside is not None:
            self._carried_out(self._inside.finish, "its last values may be missing")

    def _carried_out(self, call: Opener, otherwise: str) -> Any:
        try:
            return call()
        except Exception as failed:  # noqa: BLE001  each tracker has exceptions of its own, and none may end a training
            message = f"{type(failed).__name__}: {failed}".splitlines()[0][:300]
            note(
                str(
                    ENGINE_TRACKER_FAILED.at(
                        f"{self.name} of {self.run.path}", f"{message}; {otherwise}", severity="warning"
                    )
                )
            )
            self._inside = None
            return None


def _wandb(run: RunFolder, spec: TrainSpec, mode: str) -> Any:
    import wandb
    from accelerate.tracking import WandBTracker

    logging = spec.logging
    tracker = WandBTracker(
        logging.project_name,
        dir=str(run.path),
        name=logging.wandb_run_name or logging.experiment_name or run.path.name,
        group=logging.group_name,
        id=logging.wandb_run_id,
        resume=logging.wandb_resume,
        mode=mode,
        settings=wandb.Settings(init_timeout=REACHED_S, finish_timeout=SENT_S),
    )
    tracker.start()
    tracker.store_init_configuration(spec.model_dump())
    return tracker


def _tensorboard(run: RunFolder) -> Any:
    from accelerate.tracking import TensorBoardTracker

    tracker = TensorBoardTracker("tensorboard", logging_dir=str(run.path))
    tracker.start()
    return tracker
