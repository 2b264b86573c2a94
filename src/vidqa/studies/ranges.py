"""Ranges of values: as the schema declares them under x-automl, and as a user writes them after --range.

    1e-6..1e-3:log   0..0.1   4..32:4   1..256:log2 (powers of two)
    4,8,16   cosine:3,none:1   [["q_proj", "v_proj"], "all-linear"]

Nothing after the key takes the schema's own range.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from vidqa.contract.problem import ProblemError
from vidqa.spec.json_schema import expected, properties
from vidqa.spec.layers import parse_value
from vidqa.studies.parameters import Parameter
from vidqa.studies.space_problems import NO_BOUNDS, RANGE

ACTION = "train"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
INTERVAL = re.compile(rf"(?P<low>{NUMBER})\.\.(?P<high>{NUMBER})(?::(?P<shape>log2|log|{NUMBER}))?")
WEIGHTED = re.compile(rf"(?P<option>.+):(?P<weight>{NUMBER})")


def declared(key: str) -> Mapping[str, Any]:
    """What the schema says of a search over this key: min, max, scale, choices, weights, default ..."""
    return properties(ACTION)[key].get("x-automl", {})


def parameter(key: str, text: str, *, lora: bool) -> Parameter:
    """A key with the range that a user wrote, or with the schema's if `text` is empty. Raises AUTOML_NO_BOUNDS,
    AUTOML_RANGE."""
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
    return _interval(key, low, high, log=shape == "log", step=step)


def _from_schema(key: str, lora: bool) -> Parameter:
    said, prop = dict(declared(key)), properties(ACTION)[key]
    said |= said.get("with_lora", {}) if lora else {}
    low, high = said.get("min"), said.get("max")
    if isinstance(low, int | float) and isinstance(high, int | float):
        if said.get("scale") == "log2":
            return _choice(key, _powers_of_two(low, high))
        return _interval(key, low, high, log=said.get("scale") == "log")
    options = said.get("choices") or prop.get("enum") or ([True, False] if prop.get("type") == "boolean" else None)
    if options is None:
        message = f"{key} has no bounds in the schema; it holds {expected(ACTION, key)}"
        raise NO_BOUNDS.error(f"--range {key}", message, f"--range {key}=LOW..HIGH, or --range {key}=A,B,C")
    return _choice(key, options, said.get("weights", ()))


def _interval(
    key: str, low: float | int, high: float | int, *, log: bool = False, step: float | int | None = None
) -> Parameter:
    types = _types(key)
    if not types & {"integer", "number"}:
        raise _wrong(key, f"{low:g}..{high:g}", f"{key} holds no number but {expected(ACTION, key)}")
    whole = "integer" in types and all(isinstance(each, int) for each in (low, high, step or 1))
    if "number" not in types and not whole:
        raise _wrong(key, f"{low:g}..{high:g}", f"{key} holds {expected(ACTION, key)}: both ends are whole numbers")
    if not low < high:
        raise _wrong(key, f"{low:g}..{high:g}", f"it is empty: {low:g} is not below {high:g}")
    if log and low <= 0:
        raise _wrong(key, f"{low:g}..{high:g}:log", "the low end of a logarithmic range is above 0")
    if step is not None and not 0 < step <= high - low:
        raise _wrong(key, f"{low:g}..{high:g}:{step:g}", "a step is above 0 and at most the width of the range")
    if whole:
        return Parameter(key, "int", int(low), int(high), log, int(step) if step else None)
    return Parameter(key, "float", float(low), float(high), log, step)


def _choice(key: str, options: Sequence[Any], weights: Sequence[float] = ()) -> Parameter:
    """Values one by one; numbers are put in their order."""
    if len({json.dumps(option) for option in options}) < max(len(options), 2):
        raise _wrong(key, ", ".join(map(str, options)), "at least two values are needed, none of them twice")
    if weights and (len(weights) != len(options) or min(weights) < 0 or sum(weights) <= 0):
        raise _wrong(key, ", ".join(map(str, weights)), "every value has one weight of at least 0, one of them above")
    types = _types(key)
    if not all(isinstance(option, int | float) and not isinstance(option, bool) for option in options):
        return Parameter(key, "categorical", options=tuple(options), weights=tuple(map(float, weights)))
    if "integer" not in types:
        options = [float(option) for option in options]
    if weights:
        return Parameter(key, "categorical", options=tuple(options), weights=tuple(map(float, weights)))
    whole = all(isinstance(option, int) for option in options)
    ordered = sorted(options)
    log = ordered[0] > 0 and all(math.isclose(b / a, ordered[1] / ordered[0]) for a, b in pairwise(ordered))
    return Parameter(key, "int" if whole else "float", ordered[0], ordered[-1], log, None, tuple(ordered))


def _options(key: str, text: str) -> tuple[list[Any], list[float]]:
    """The values of a list and their weights, which are given for all of them or for none."""
    if text.startswith("["):
        found = parse_value(text)
        if not isinstance(found, list):
            raise _wrong(key, text, "it is no JSON list")
        return found, []
    words = [word.strip() for word in text.split(",")]
    weighted = [WEIGHTED.fullmatch(word) for word in words]
    if all(weighted):
        return [_value(key, each["option"]) for each in weighted if each], [
            float(each["weight"]) for each in weighted if each
        ]
    if "" in words:
        raise _wrong(key, text, "a value between two commas is missing")
    return [_value(key, word) for word in words], []


def _value(key: str, word: str) -> Any:
    value = parse_value(word)
    return word if value is None and "null" not in _types(key) else value  # "none" is a name, too


def _powers_of_two(low: float, high: float) -> list[int]:
    return [2**power for power in range(64) if low <= 2**power <= high]


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _types(key: str) -> set[str]:
    """The JSON types that a key may hold."""

    def visit(prop: Mapping[str, Any]) -> set[str]:
        inner = set().union(*(visit(choice) for choice in prop.get("anyOf", [])))
        return inner | ({prop["type"]} if "type" in prop else set())

    return visit(properties(ACTION)[key])


def _wrong(key: str, shown: str, why: str) -> ProblemError:
    return RANGE.error(f"--range {key}", f"{key} = {shown}: {why}")
