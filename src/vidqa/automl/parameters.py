"""A parameter of a search: what values it may have, where it applies, and its place in the unit interval."""

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
    """A key of the spec that is searched.

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

    @property
    def ordered(self) -> bool:
        """Neighbouring values are alike."""
        return self.kind != "categorical"

    @property
    def count(self) -> int | None:
        """How many values it may have; None for a range of numbers without steps."""
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
        """The value at a place of [0, 1]: places that are equally likely give values as likely as they are meant."""
        unit = min(max(unit, 0.0), 1.0)
        if self.options:
            return self.options[min(bisect_right(self._ends(), unit), len(self.options) - 1)]
        if self.kind == "int":
            return self._whole(unit)
        if self.step is not None:
            assert self.count is not None
            return self._low + min(int(unit * self.count), self.count - 1) * self.step
        if self.log:
            value = math.exp(math.log(self._low) + unit * (math.log(self._high) - math.log(self._low)))
        else:
            value = self._low + unit * (self._high - self._low)
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """A number of the range without the digits that nobody needs."""
        return min(max(float(f"{value:.6g}"), self._low), self._high)

    def unit(self, value: Any) -> float:
        """The place of a value in [0, 1], the middle of its share where it has one. A number outside of the range is
        taken as the nearest end; a value that is no option, as the middle."""
        if self.options:
            index = self.index(value)
            ends = [0.0, *self._ends()]
            return 0.5 if index is None else (ends[index] + ends[index + 1]) / 2
        if not isinstance(value, int | float):
            return 0.5
        value = min(max(value, self._low), self._high)
        if self.log:
            low, high = self._log_ends()
            return (math.log(value) - low) / (high - low) if high > low else 0.5
        if (count := self.count) is not None:
            step = self._step
            assert step is not None
            return (round((value - self._low) / step) + 0.5) / count
        return (value - self._low) / (self._high - self._low) if self._high > self._low else 0.5

    def index(self, value: Any) -> int | None:
        """Which option a value is; of numbers the nearest one. None for what is none."""
        if self.ordered and isinstance(value, int | float):
            return min(range(len(self.options)), key=lambda each: abs(self.options[each] - value))
        return next((place for place, option in enumerate(self.options) if same(option, value)), None)

    def middle(self) -> Any:
        """A value in the middle, of options the likeliest."""
        if self.weights:
            return self.options[max(range(len(self.weights)), key=self.weights.__getitem__)]
        return self.at(0.5)

    def holds(self, value: Any) -> bool:
        """It is a value that the search may propose."""
        if self.options:
            return any(same(option, value) for option in self.options)
        if isinstance(value, bool) or not isinstance(value, int | float) or not self._low <= value <= self._high:
            return False
        step = self._step
        return step is None or math.isclose((value - self._low) / step, round((value - self._low) / step), abs_tol=1e-6)

    def words(self) -> str:
        """Its values, as a person reads them."""
        if self.options:
            shown = [json.dumps(option) for option in self.options]
            if self.weights:
                shown = [f"{option}:{weight:g}" for option, weight in zip(shown, self.weights, strict=True)]
            return ", ".join(shown)
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
        """The logarithms of the ends; those of whole numbers lie half a step further out, so that both ends are as
        likely as their neighbours."""
        outside = 0.5 if self.kind == "int" else 0.0
        return math.log(self._low - outside), math.log(self._high + outside)

    def _whole(self, unit: float) -> int:
        if self.log:
            low, high = self._log_ends()
            return int(min(max(round(math.exp(low + unit * (high - low))), self._low), self._high))
        assert self.count is not None
        return int(self._low + min(int(unit * self.count), self.count - 1) * (self.step or 1))


def same(one: Any, other: Any) -> bool:
    """Equal, and both or neither a truth value: True is not 1 here."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
