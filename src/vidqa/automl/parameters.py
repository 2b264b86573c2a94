"""Parameters of a search: their values, conditions, positions in the unit interval, and the ranges that define them,
from the schema (x-automl) or a user's --range:

    1e-6..1e-3:log   0..0.1   4..32:4   1..256:log2 (powers of two)
    4,8,16   cosine:3,none:1   [["q_proj", "v_proj"], "all-linear"]

A key without a range has the schema's; LOW..HIGH above 0 keeps a logarithmic scale of the schema. optuna's
distributions have neither weights nor conditions nor a position in [0, 1], which the algorithms with rungs, the grid,
CMA-ES and the report need; `algorithms.samplers` translates for optuna's samplers.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

from vidqa.automl.problems import RANGE
from vidqa.core.problem import ProblemError
from vidqa.spec.keys import expected, properties
from vidqa.spec.layers import parse_value
from vidqa.spec.schedule import LEARNING_RATE

Kind = Literal["float", "int", "categorical"]
ACTION = "train"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
INTERVAL = re.compile(rf"(?P<low>{NUMBER})\.\.(?P<high>{NUMBER})(?::(?P<shape>log2|log|{NUMBER}))?")
WEIGHTED = re.compile(rf"(?P<option>.+):(?P<weight>{NUMBER})")


@dataclass(frozen=True)
class Condition:
    """The condition of a parameter: its parent has one of these values."""

    parent: str
    values: tuple[Any, ...]

    def holds(self, values: Mapping[str, Any]) -> bool:
        return self.parent in values and values[self.parent] in self.values


@dataclass(frozen=True)
class Parameter:
    """A searched key of the spec.

    A number is between `low` and `high`, in steps if it has a step, or is one of `options`, in ascending order. A
    categorical parameter (`low` and `high` 0) is one of `options`, drawn by `weights` if it has any. `inherited`: it
    shapes the weights, so a trial that starts from another's weights has the same value.
    """

    name: str
    kind: Kind
    low: float | int = 0
    high: float | int = 0
    log: bool = False
    step: float | int | None = None
    options: tuple[Any, ...] = ()
    weights: tuple[float, ...] = ()
    condition: Condition | None = None
    inherited: bool = False

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Whether its condition holds for these values of other parameters."""
        return self.condition is None or self.condition.holds(values)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def ordered(self) -> bool:
        """Whether neighbouring values are similar."""
        return self.kind != "categorical"

    @property
    def count(self) -> int | None:
        """The number of its values; None for a continuous range."""
        if self.options:
            return len(self.options)
        step = self._step
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    @property
    def _step(self) -> float | int | None:
        return self.step if self.step is not None else 1 if self.kind == "int" else None

    def at(self, unit: float) -> Any:
        """The value at a position in [0, 1]; uniform positions give values with the intended distribution."""
        unit = min(max(unit, 0.0), 1.0)
        if self.options:
            return self.options[min(bisect_right(self._ends(), unit), len(self.options) - 1)]
        if self.log:
            low, high = self._log_ends()
            value = math.exp(low + unit * (high - low))
            return int(min(max(round(value), self.low), self.high)) if self.kind == "int" else self.rounded(value)
        if (count := self.count) is not None:
            value = self.low + min(int(unit * count), count - 1) * (self._step or 1)
            return int(value) if self.kind == "int" else value
        return self.rounded(self.low + unit * (self.high - self.low))

    def rounded(self, value: float) -> float:
        """Round a number to six digits, within the range."""
        return min(max(float(f"{value:.6g}"), self.low), self.high)

    def unit(self, value: Any) -> float:
        """The position of a value in [0, 1]; of a discrete value the middle of its share. A number outside of the range
        has the position of the nearest end; a value that is no option, the middle."""
        if self.options:
            index, ends = self.index(value), [0.0, *self._ends()]
            return 0.5 if index is None else (ends[index] + ends[index + 1]) / 2
        if not isinstance(value, int | float):
            return 0.5
        value = min(max(value, self.low), self.high)
        if self.log:
            low, high = self._log_ends()
            return (math.log(value) - low) / (high - low) if high > low else 0.5
        if (count := self.count) is not None:
            return (round((value - self.low) / (self._step or 1)) + 0.5) / count
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def index(self, value: Any) -> int | None:
        """The index of an option; for numbers that of the nearest one. None if there is none."""
        if self.ordered and isinstance(value, int | float):
            return min(range(len(self.options)), key=lambda place: abs(self.options[place] - value))
        return next((place for place, option in enumerate(self.options) if same(option, value)), None)

    def middle(self) -> Any:
        """The middle value, or the option with the largest weight."""
        if self.weights:
            return self.options[max(range(len(self.weights)), key=self.weights.__getitem__)]
        return self.at(0.5)

    def holds(self, value: Any) -> bool:
        """Whether the value is in the search space."""
        if self.options:
            return any(same(option, value) for option in self.options)
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        step = self._step
        return step is None or math.isclose((value - self.low) / step, round((value - self.low) / step), abs_tol=1e-6)

    def values_text(self) -> str:
        """Its options or range as text."""
        if self.options:
            names = [json.dumps(option) for option in self.options]
            if self.weights:
                names = [f"{option}:{weight:g}" for option, weight in zip(names, self.weights, strict=True)]
            return ", ".join(names)
        ends = f"{self.low:g}..{self.high:g}"
        return ends + (" (log)" if self.log else "") + (f" in steps of {self.step:g}" if self.step else "")

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, (), False)}

    def _ends(self) -> list[float]:
        """The cumulative shares of the options in [0, 1]."""
        weights = self.weights or (1.0,) * len(self.options)
        total = sum(weights)
        return [end / total for end in accumulate(weights)]

    def _log_ends(self) -> tuple[float, float]:
        """Logarithms of the ends; for integers extended by half a step, so that both ends are as likely as their
        neighbours."""
        outside = 0.5 if self.kind == "int" else 0.0
        return math.log(self.low - outside), math.log(self.high + outside)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and both or neither are bool: True is not 1 here."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def schema_key(key: str) -> str:
    """The schema's key for `key`: the learning rate of one part of the model has that of all parts."""
    return LEARNING_RATE if key.startswith(f"{LEARNING_RATE}.") else key


def declared(key: str) -> Mapping[str, Any]:
    """The schema's search range of a key: min, max, scale, choices, weights, default ..."""
    return properties(ACTION)[schema_key(key)].get("x-automl", {})


def read_parameter(key: str, text: str, *, lora: bool) -> Parameter:
    """Parse a key with a user's range, or with the schema's if `text` is empty. Raises AUTOML_RANGE."""
    text = text.strip()
    if not text:
        return _from_schema(key, lora)
    interval = INTERVAL.fullmatch(text)
    if interval is None:
        return _choice(key, *_options(key, text))
    low, high, shape = _number(interval["low"]), _number(interval["high"]), interval["shape"] or ""
    if shape == "log2":
        return _choice(key, _powers_of_two(low, high))
    step = _number(shape) if shape and shape != "log" else None
    log = shape == "log" or (not shape and low > 0 and declared(key).get("scale") == "log")
    return _interval(key, low, high, log=log, step=step)


def _from_schema(key: str, lora: bool) -> Parameter:
    search, prop = dict(declared(key)), properties(ACTION)[schema_key(key)]
    search |= search.get("with_lora", {}) if lora else {}
    low, high = search.get("min"), search.get("max")
    if isinstance(low, int | float) and isinstance(high, int | float):
        if search.get("scale") == "log2":
            return _choice(key, _powers_of_two(low, high))
        return _interval(key, low, high, log=search.get("scale") == "log")
    options = search.get("choices") or prop.get("enum") or ([True, False] if prop.get("type") == "boolean" else None)
    if options is None:
        message = f"{key} has no bounds in the schema; it is {expected(ACTION, key)}"
        raise RANGE.error(f"--range {key}", message, f"--range {key}=LOW..HIGH, or --range {key}=A,B,C")
    return _choice(key, options, search.get("weights", ()))


def _interval(
    key: str, low: float | int, high: float | int, *, log: bool = False, step: float | int | None = None
) -> Parameter:
    types = _types(key)
    if not types & {"integer", "number"}:
        raise _range_error(key, f"{low:g}..{high:g}", f"{key} is not a number but {expected(ACTION, key)}")
    whole = "integer" in types and all(isinstance(number, int) for number in (low, high, step or 1))
    if "number" not in types and not whole:
        raise _range_error(
            key, f"{low:g}..{high:g}", f"{key} is {expected(ACTION, key)}: both ends must be whole numbers"
        )
    if not low < high:
        raise _range_error(key, f"{low:g}..{high:g}", f"it is empty: {low:g} is not below {high:g}")
    if log and low <= 0:
        raise _range_error(key, f"{low:g}..{high:g}:log", "the low end of a logarithmic range must be above 0")
    if step is not None and not 0 < step <= high - low:
        raise _range_error(
            key, f"{low:g}..{high:g}:{step:g}", "a step must be above 0 and at most the width of the range"
        )
    if whole:
        return Parameter(key, "int", int(low), int(high), log, int(step) if step else None)
    return Parameter(key, "float", float(low), float(high), log, step)


def _choice(key: str, options: Sequence[Any], weights: Sequence[float] = ()) -> Parameter:
    """A parameter of listed values; numbers are sorted."""
    if len({json.dumps(option) for option in options}) < max(len(options), 2):
        raise _range_error(key, ", ".join(map(str, options)), "at least two different values are needed")
    if weights and (len(weights) != len(options) or min(weights) < 0 or sum(weights) <= 0):
        raise _range_error(key, ", ".join(map(str, weights)), "every value needs one weight, none below 0, not all 0")
    numbers = all(isinstance(option, int | float) and not isinstance(option, bool) for option in options)
    if numbers and "integer" not in _types(key):
        options = [float(option) for option in options]
    if weights or not numbers:
        return Parameter(key, "categorical", options=tuple(options), weights=tuple(map(float, weights)))
    whole = all(isinstance(option, int) for option in options)
    ordered = sorted(options)
    log = ordered[0] > 0 and all(math.isclose(b / a, ordered[1] / ordered[0]) for a, b in pairwise(ordered))
    return Parameter(key, "int" if whole else "float", ordered[0], ordered[-1], log, None, tuple(ordered))


def _options(key: str, text: str) -> tuple[list[Any], list[float]]:
    """Parse the values of a list and their weights, which all or none of them have."""
    if text.startswith("["):
        options = parse_value(text)
        if not isinstance(options, list):
            raise _range_error(key, text, "it is not a JSON list")
        return options, []
    words = [word.strip() for word in text.split(",")]
    weighted = [match for word in words if (match := WEIGHTED.fullmatch(word))]
    if len(weighted) == len(words):
        return [read_value(key, match["option"]) for match in weighted], [float(match["weight"]) for match in weighted]
    if "" in words:
        raise _range_error(key, text, "a value between two commas is missing")
    return [read_value(key, word) for word in words], []


def read_value(key: str, word: str) -> Any:
    """Parse a value of --range or --fix; "none" is a string for a key that cannot be null."""
    value = parse_value(word)
    return word if value is None and "null" not in _types(key) else value


def _powers_of_two(low: float, high: float) -> list[int]:
    return [2**power for power in range(64) if low <= 2**power <= high]


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _types(key: str) -> set[str]:
    """The JSON types that a key accepts."""

    def visit(prop: Mapping[str, Any]) -> set[str]:
        inner = set().union(*(visit(choice) for choice in prop.get("anyOf", [])))
        return inner | ({prop["type"]} if "type" in prop else set())

    return visit(properties(ACTION)[schema_key(key)])


def _range_error(key: str, shown: str, why: str) -> ProblemError:
    return RANGE.error(f"--range {key}", f"{key} = {shown}: {why}")
