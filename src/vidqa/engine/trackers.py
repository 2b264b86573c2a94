"""Trackers that the spec names, through accelerate: wandb and tensorboard. None of them ever ends a training.

metrics.jsonl has all metrics; a tracker shows them elsewhere. An error of a tracker becomes a single warning: wandb
continues offline if its server cannot be reached, and a tracker that fails later is not used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vidqa.core import environment
from vidqa.core._optional import require
from vidqa.core.cli import note
from vidqa.core.run_folder import RunFolder
from vidqa.engine.problems import ENGINE_TRACKER_FAILED
from vidqa.spec.models import TrainSpec

NAMES = ("wandb", "tensorboard")
REACHED_S = 20.0  # for wandb's server to answer; wandb itself needs twice that to give up
SENT_S = 60.0  # at the end, for unsent data

Opener = Callable[[], Any]


def require_trackers(logging: Any) -> None:
    """Fail before the model is loaded where a tracker that the spec names is not installed."""
    for name in sorted(set(logging.logger) & set(NAMES)):
        require(name, name)


def open_trackers(run: RunFolder, spec: TrainSpec) -> list[Tracker]:
    """The trackers of `spec.logging.logger`, each with its ways to open, the best first."""
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
