"""Functions that stand for trainings in search.py: Branin, Hartmann-6, a mixed conditional one, a recorded table."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import numpy as np
import pandas as pd

from vidqa.automl.moves import Goal, Values
from vidqa.automl.parameters import Condition, Parameter
from vidqa.automl.simulation import Training
from vidqa.automl.space import Space

STEPS = 81  # of a whole training
CORNER = (1.1, 10.0)  # of two metrics, the worst that counts
ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
WEIGHTS_46 = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
PLACES_46 = np.array(
    [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ]
)


@dataclass(frozen=True)
class Function:
    """A space, what is to be minimized over it, the least it can be, and how a training moves towards it."""

    name: str
    space: Space
    value: Callable[[Values], float]
    least: float
    begin: float  # the loss before any step
    steps: int = STEPS
    curves: Training | None = None  # of a recorded table
    shortest: int | None = None  # steps of the first rung, where not one in 27
    pair: Callable[[Values], tuple[float, float]] | None = None  # two metrics, instead of a value

    @property
    def goals(self) -> tuple[Goal, ...]:
        return tuple(Goal(name, "minimize") for name in (("loss", "cost") if self.pair else ("loss",)))

    @property
    def whole(self) -> Training:
        """A training that is judged at its end alone."""
        if pair := self.pair:
            return lambda state, values, begun, steps: (None, pair(values))
        return self.curves or (lambda state, values, begun, steps: (None, (self.value(values),)))

    @property
    def training(self) -> Training:
        """The loss falls from `begin` towards the value of its present point, which gives its speed as well: curves
        cross, and what is best early need not be so at the end."""

        def falling(state: Any, values: Values, begun: int, steps: int) -> tuple[Any, tuple[float, ...]]:
            before = self.begin if state is None else state
            end = self.value(values)
            speed = 5 + 2 * math.sin(7 * sum(each.unit(values[each.name]) for each in self.space.active(values)))
            after = end + (before - end) * math.exp(-speed * (steps - begun) / self.steps)
            return after, (after,)

        return self.curves or falling


def branin(values: Values) -> float:
    x, y = values["x"], values["y"]
    bend = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bend**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann(values: Values) -> float:
    point = np.array([values[f"x{place}"] for place in range(6)])
    return -float(ALPHA @ np.exp(-(WEIGHTS_46 * (point - PLACES_46) ** 2).sum(axis=1)))


def mixed(values: Values) -> float:
    """0 at rate 1e-4, depth 8, kind "bent", bend 0.3, of which only that kind knows; "even" has a minimum of 0.3."""
    loss = (math.log10(values["rate"]) + 4) ** 2 / 2 + (math.log2(values["depth"]) - 3) ** 2 / 8
    loss += abs(values["epochs"] - 12) / 20
    if values["kind"] == "bent":
        return loss + 4 * (values["bend"] - 0.3) ** 2
    if values["kind"] == "even":
        return loss + 0.3 + (math.log(values["share"]) - math.log(0.02)) ** 2 / 4
    return loss + 1.0


def trade(values: Values) -> tuple[float, float]:
    """ZDT1 in six dimensions: the best pairs have all but the first coordinate at 0."""
    far = 1 + 9 * sum(values[f"x{place}"] for place in range(1, 6)) / 5
    return values["x0"], far * (1 - math.sqrt(values["x0"] / far))


def area(pairs: Iterable[tuple[float, ...]]) -> float:
    """Of the plane below CORNER, what the pairs are at least as good as."""
    total, low = 0.0, CORNER[1]
    for first, second in sorted(pairs):
        if first < CORNER[0] and second < low:
            total, low = total + (CORNER[0] - first) * (low - second), second
    return total


PLANE = Space((Parameter("x", "float", -5.0, 10.0), Parameter("y", "float", 0.0, 15.0)))
CUBE = Space(tuple(Parameter(f"x{place}", "float", 0.0, 1.0) for place in range(6)))
MIXED = Space(
    (
        Parameter("rate", "float", 1e-6, 1e-2, log=True),
        Parameter("depth", "int", 1, 64, log=True, options=(1, 2, 4, 8, 16, 32, 64), inherited=True),
        Parameter("epochs", "int", 1, 20),
        Parameter("kind", "categorical", options=("plain", "even", "bent")),
        Parameter("bend", "float", 0.0, 1.0, condition=Condition("kind", ("bent",))),
        Parameter("share", "float", 1e-3, 1.0, log=True, condition=Condition("kind", ("even",))),
    )
)
FUNCTIONS = (
    Function("branin", PLANE, branin, least=0.397887, begin=60.0),
    Function("hartmann6", CUBE, hartmann, least=-3.32237, begin=0.5),
    Function("mixed", MIXED, mixed, least=0.0, begin=8.0),
    # `least`: less the area that all best pairs leave to none, (10 - (1 - sqrt(x))) from 0 to 1 and 10 from 1 to 1.1.
    Function("two metrics", CUBE, lambda values: 0.0, least=-(9 + 2 / 3 + 1), begin=0.0, pair=trade),
)


def recorded(file: Path) -> Function:
    """The trainings of a table: a row for each measurement, a column for each key, beside `step` and `loss`. All
    combinations of the keys' values are there."""
    rows = pd.read_parquet(file)
    keys = [name for name in rows.columns if name not in ("step", "loss")]
    curves = {key: group.sort_values("step") for key, group in rows.groupby(keys)}
    parameters = []
    for key in keys:
        options = tuple(value.item() for value in sorted(rows[key].unique()))
        parameters.append(Parameter(key, "float" if isinstance(options[0], float) else "int", options=options))

    def known(state: Any, values: Values, begun: int, steps: int) -> tuple[Any, tuple[float, ...]]:
        curve = curves[tuple(values[key] for key in keys)]
        return None, (float(curve[curve["step"] <= steps]["loss"].iloc[-1]),)

    last, shortest = int(rows["step"].max()), int(rows["step"].min())
    least = float(rows[rows["step"] == last]["loss"].min())
    begin = float(rows["loss"].max())
    return Function("recorded", Space(tuple(parameters)), lambda values: 0.0, least, begin, last, known, shortest)
