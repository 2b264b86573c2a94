"""A parameter of a search: its values, where it applies, and its position in the unit interval.

optuna's distributions know neither weights nor conditions nor a position in [0, 1], which the algorithms with rungs,
the grid, CMA-ES and the report need; `algorithms.optuna_samplers` translates for the samplers.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal

Kind = Literal["float", "int", "categorical"]


@dataclass(frozen=True)
class Condition:
    """Where a parameter applies: its parent has one of these values."""

    parent: str
    values: tuple[Any, ...]

    def holds(self, values: Mapping[str, Any]) -> bool:
        return self.parent in values and values[self.parent] in self.values


@dataclass(frozen=True)
class Parameter:
    """A searched key of the spec.

    A number lies between `low` and `high`, in steps if it has a step, or is one of `options`, which then ascend. A
    categorical is one of `options`, drawn by `weights` where it has any. `inherited`: it shapes the weights, so a trial
    that goes on from another's weights has its value.
    """

    name: str
    kind: Kind
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    step: float | int | None = None
    options: tuple[Any, ...] = ()
    weights: tuple[float, ...] = ()
    condition: Condition | None = None
    inherited: bool = False

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Whether it has a value beside these values of its parents."""
        return self.condition is None or self.condition.holds(values)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def ordered(self) -> bool:
        """Neighbouring values are alike."""
        return self.kind != "categorical"

    @property
    def count(self) -> int | None:
        """The number of its values; None for a range of numbers without steps."""
        if self.options:
            return len(self.options)
        step = self._step
        return None if step is None else math.floor((self._high - self._low) / step + 1e-9) + 1

    @property
    def _step(self) -> float | int | None:
        return self.step if self.step is not None else 1 if self.kind == "int" else None

    @property
    def _low(self) -> float:
        assert self.low is not None
        return self.low

    @property
    def _high(self) -> float:
        assert self.high is not None
        return self.high

    def at(self, unit: float) -> Any:
        """The value at a position in [0, 1]; positions drawn evenly give values as likely as intended."""
        unit = min(max(unit, 0.0), 1.0)
        if self.options:
            return self.options[min(bisect_right(self._ends(), unit), len(self.options) - 1)]
        if self.log:
            low, high = self._log_ends()
            value = math.exp(low + unit * (high - low))
            return int(min(max(round(value), self._low), self._high)) if self.kind == "int" else self.rounded(value)
        if (count := self.count) is not None:
            value = self._low + min(int(unit * count), count - 1) * (self._step or 1)
            return int(value) if self.kind == "int" else value
        return self.rounded(self._low + unit * (self._high - self._low))

    def rounded(self, value: float) -> float:
        """A number of the range, to six digits."""
        return min(max(float(f"{value:.6g}"), self._low), self._high)

    def unit(self, value: Any) -> float:
        """The position of a value in [0, 1], the middle of its share where it has one. A number outside of the range
        counts as the nearest end; a value that is no option, as the middle."""
        if self.options:
            index, ends = self.index(value), [0.0, *self._ends()]
            return 0.5 if index is None else (ends[index] + ends[index + 1]) / 2
        if not isinstance(value, int | float):
            return 0.5
        value = min(max(value, self._low), self._high)
        if self.log:
            low, high = self._log_ends()
            return (math.log(value) - low) / (high - low) if high > low else 0.5
        if (count := self.count) is not None:
            return (round((value - self._low) / (self._step or 1)) + 0.5) / count
        return (value - self._low) / (self._high - self._low) if self._high > self._low else 0.5

    def index(self, value: Any) -> int | None:
        """The index of an option; of numbers that of the nearest one. None if there is none."""
        if self.ordered and isinstance(value, int | float):
            return min(range(len(self.options)), key=lambda place: abs(self.options[place] - value))
        return next((place for place, option in enumerate(self.options) if same(option, value)), None)

    def middle(self) -> Any:
        """A value in the middle, of options the likeliest."""
        if self.weights:
            return self.options[max(range(len(self.weights)), key=self.weights.__getitem__)]
        return self.at(0.5)

    def holds(self, value: Any) -> bool:
        """Whether the search may propose the value."""
        if self.options:
            return any(same(option, value) for option in self.options)
        if isinstance(value, bool) or not isinstance(value, int | float) or not self._low <= value <= self._high:
            return False
        step = self._step
        return step is None or math.isclose((value - self._low) / step, round((value - self._low) / step), abs_tol=1e-6)

    def words(self) -> str:
        """Its values for a person."""
        if self.options:
            names = [json.dumps(option) for option in self.options]
            if self.weights:
                names = [f"{option}:{weight:g}" for option, weight in zip(names, self.weights, strict=True)]
            return ", ".join(names)
        ends = f"{self._low:g}..{self._high:g}"
        return ends + (" (log)" if self.log else "") + (f" in steps of {self.step:g}" if self.step else "")

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, (), False)}

    def _ends(self) -> list[float]:
        """Where in [0, 1] the share of each option ends."""
        weights = self.weights or (1.0,) * len(self.options)
        total = sum(weights)
        return [end / total for end in accumulate(weights)]

    def _log_ends(self) -> tuple[float, float]:
        """Logarithms of the ends; for whole numbers half a step further out, so that both ends are as likely as their
        neighbours."""
        outside = 0.5 if self.kind == "int" else 0.0
        return math.log(self._low - outside), math.log(self._high + outside)


def same(one: Any, other: Any) -> bool:
    """Equal, and both or neither a truth value: True is not 1 here."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
