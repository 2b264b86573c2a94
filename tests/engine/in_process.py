"""Training on one rank in the process of a test: seconds instead of the half minute that torchrun takes to start.

run = train_here(tiny_spec(...), folder / "run")
run = train_here(tiny_spec(...), folder / "run", stop_after=3)      as if SIGTERM came during that step
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accelerate import PartialState

from vidqa.core.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine import train as program
from vidqa.engine.data.dataloader import Step
from vidqa.engine.objectives import Objective
from vidqa.engine.signals import STOP_SIGNALS
from vidqa.engine.training.learner import Learner
from vidqa.spec import load


@contextmanager
def one_rank() -> Iterator[None]:
    """What torchrun gives to the only process of a job, taken back at the end."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        with patch.dict(os.environ, place):
            yield
    finally:
        distributed.stop()
        PartialState._reset_state()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def stopped_in(step_number: int | None) -> Iterator[None]:
    """SIGTERM comes during this step of a run, from 1; None: it does not come."""
    train_step = Learner.train_step

    def step(learner: Learner, step: Step) -> Any:
        if step_number is not None and step.number + 1 == step_number:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(learner, step)

    with patch.object(Learner, "train_step", step):
        yield


def train_here(spec: Path, run: Path, *, stop_after: int | None = None, objective: Objective | None = None) -> Path:
    """Carry out a spec in a run folder, and return the folder. Raises what the engine raises."""
    asked = load(spec, "train")
    with one_rank(), stopped_in(stop_after):
        run.mkdir(exist_ok=True, parents=True)
        program.train(asked, RunFolder(run), objective)
    return run


def events(run: Path, key: str) -> dict[int, float]:
    """The values of a metric by step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {event["step"]: event[key] for event in lines if key in event}
