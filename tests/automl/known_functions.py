"""A space, and a training that is a formula: the loss falls towards a value and at a speed that depend on the point."""

from __future__ import annotations

import math
from typing import Any

from vidqa.automl.algorithms import Fidelity, Searcher, algorithm
from vidqa.automl.decisions import Goal, Values
from vidqa.automl.parameters import Condition, Parameter
from vidqa.automl.space import Space

RUNGS = Fidelity(3, 81)
LOSS, ACCURACY = Goal(metric="loss", direction="minimize"), Goal(metric="accuracy", direction="maximize")
MIXED = Space(
    (
        Parameter("rate", "float", 1e-6, 1e-3, log=True),
        Parameter("rank", "int", 1, 64, log=True, options=(1, 2, 4, 8, 16, 32, 64), inherited=True),
        Parameter("epochs", "int", 1, 20),
        Parameter("decay", "categorical", options=("none", "cosine"), weights=(0.3, 0.7)),
        Parameter("floor", "float", 0.0, 0.5, condition=Condition("decay", ("cosine",))),
    )
)


def end(values: Values) -> float:
    """What the loss of a point falls to; 0 at rate 1e-4, rank 16, 8 epochs, cosine down to 0.1."""
    far = (math.log10(values["rate"]) + 4) ** 2 + (math.log2(values["rank"]) - 4) ** 2 / 9
    return (
        far + (values["epochs"] - 8) ** 2 / 100 + (1.0 if values["decay"] == "none" else (values["floor"] - 0.1) ** 2)
    )


def training(state: Any, values: Values, begun: int, steps: int) -> tuple[float, tuple[float, ...]]:
    before = 5.0 if state is None else state
    speed = 4 + math.sin(10 * math.log10(values["rate"]))
    loss = end(values) + (before - end(values)) * math.exp(-speed * (steps - begun) / RUNGS.max_steps)
    return loss, (loss,)


def made(name: str, *, seed: int = 0, max_trials: int = 20, goals: Any = (LOSS,)) -> Searcher:
    return algorithm(name, MIXED, goals, seed=seed, max_trials=max_trials, rungs=RUNGS)
