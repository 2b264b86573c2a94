"""Actions on one rank in the process of a test: a second less than in a fork, and half a minute less than afresh.

run = train_here(tiny_spec(...), folder / "run")
run = run_here("evaluate", spec, folder / "run")
run = train_here(tiny_spec(...), folder / "run", stop_after=3)      as if SIGTERM came during that step
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accelerate import PartialState
from logged_metrics import OF_GRPO
from tiny_world import run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.core import actions
from vidqa.core.metric_names import training_metrics
from vidqa.core.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine import train as program
from vidqa.engine.data.dataloader import Step
from vidqa.engine.signals import STOP_SIGNALS
from vidqa.engine.training.learner import Learner
from vidqa.engine.training.objectives import Objective
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


def run_here(action: str, spec: Path, run: Path) -> Path:
    """Carry out a spec of any action to its end in a run folder, and return the folder. Raises what the engine raises.
    There is no status of the end, no report of a training and no upload, which only the engine's process writes."""
    run.mkdir(exist_ok=True, parents=True)
    program = actions.resolve(actions.action(action).program)
    with one_rank():
        assert program(load(spec, action), RunFolder(run)) == 0
    return run


def train_on(ranks: int, spec: Path, run: Path) -> Path:
    """Train in this process where one rank is enough, else under torchrun."""
    if ranks == 1:
        return train_here(spec, run)
    run_engine("train", spec, run, ranks)
    return run


def runs_on_ranks(folder: Path, **usual: Any) -> Callable[..., Path]:
    """A function of a name, a number of ranks and changes to `usual` that trains and returns the run folder. Every step
    takes four samples; weights are sharded over the ranks."""
    model, root = tiny_model(folder), tiny_data(folder, clips=3)

    def run(name: str, ranks: int, **changes: Any) -> Path:
        mesh = {"policy.parallelism.dp_shard_size": ranks, "train.train_batch_per_replica": 4 // ranks}
        (folder / name).mkdir()
        spec = tiny_spec(folder / name, model, root, {**usual, **mesh, **changes})
        return train_on(ranks, spec, folder / name / "run")

    return run


def events(run: Path, key: str, *, own: Collection[str] = ()) -> dict[int, float]:
    """The values of a metric by step, from a file without unknown names; `own` are those of a test's objective."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    names = {name for event in lines for name in event if not name.startswith("reward/")}
    assert names - {"step", "time"} <= {*training_metrics("dpo"), *OF_GRPO, *own}
    return {event["step"]: event[key] for event in lines if key in event}
