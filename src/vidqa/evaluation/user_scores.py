"""A user's score of each answer: `my_scores.py:score`, a function that gets one item of results.json.

    scores = user_scores("my_scores.py:score", items, timeout_s=600)

The function runs in a process of its own, whose process group ends at the time limit. It returns a number, a dictionary
of numbers by name, or None for an answer that it does not score.
"""

from __future__ import annotations

import hashlib
import symtable
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from vidqa.core.files import absolute
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.user_function import UserFunction, UserFunctionError, UserFunctionTimeout, is_number
from vidqa.data.problems import USER_FUNCTION
from vidqa.data.sources._base import FUNCTION
from vidqa.evaluation.results import Item, groups

MOST_NAMES = 32  # most scores of one function
LONGEST_NAME = 64
Scores = dict[str, float]


@dataclass(frozen=True)
class UserScores:
    """Scores of a user function. `values` holds the scores of each item by name, in the order of the items; empty for
    items that the function skips, and for all items if it failed: `problems` say why."""

    function: str
    values: list[Scores]
    problems: list[Problem]

    def table(self, items: Sequence[Item]) -> dict[str, Any]:
        """The table of metrics.json: for each score the number of items with it, their mean, and both by kind."""
        scores_of = {id(item): scores for item, scores in zip(items, self.values, strict=False)}
        names = sorted({name for scores in self.values for name in scores})
        kinds = {kind: [scores_of.get(id(item), {}) for item in group] for kind, group in groups(items, "kind")}
        return {
            "function": self.function,
            "n_not_scored": len(items) - sum(bool(scores) for scores in self.values),
            "scores": {
                name: {
                    **_mean(self.values, name),
                    "by_kind": {kind: row for kind, group in kinds.items() if (row := _mean(group, name))["n"]},
                }
                for name in names
            },
        }


def _mean(scores: Sequence[Mapping[str, float]], name: str) -> dict[str, Any]:
    values = [row[name] for row in scores if name in row]
    return {"n": len(values), "mean": round(fmean(values), 6) if values else None}


def function_recipe(function: str) -> dict[str, str]:
    """The facts that a score depends on: name and file content of the function. Raises USER_FUNCTION."""
    file, name = _parts(function)
    return {"function": f"{file.name}:{name}", "sha256": hashlib.sha256(_content(file)).hexdigest()}


def require_function(function: str) -> None:
    """Raise USER_FUNCTION if the file is not Python, or its top level does not define the function."""
    file, name = _parts(function)
    try:
        top = symtable.symtable(_content(file), str(file), "exec")  # type: ignore[arg-type]
    except (SyntaxError, ValueError, RecursionError) as broken:
        line = getattr(broken, "lineno", None)
        raise USER_FUNCTION.error(f"{file}:{line}" if line else file, f"it is not valid Python: {broken}") from broken
    if name not in top.get_identifiers() or not (top.lookup(name).is_assigned() or top.lookup(name).is_imported()):
        raise USER_FUNCTION.error(file, f"there is no function {name}")


def user_scores(function: str, items: Sequence[Item], timeout_s: float) -> UserScores:
    """Call the function with each item, in order. An error in it is a warning, and then no item has a score."""
    file, name = _parts(function)
    deadline = time.monotonic() + timeout_s
    values: list[Scores] = []
    try:
        with UserFunction(file, name, limit_s=timeout_s) as scorer:
            for item in items:
                value = scorer.call([item], limit_s=deadline - time.monotonic())
                values.append(_scores(value, name, f"{function} of answer {len(values)}"))
        return UserScores(function, values, [])
    except UserFunctionTimeout:
        problem = USER_FUNCTION.at(function, f"{timeout_s:g} s were not enough for {len(items)} answers")
    except UserFunctionError as failed:
        message = f"{failed.message} (after {len(values)} of {len(items)} answers)"
        problem = USER_FUNCTION.at(failed.where or function, message)
    except ProblemError as wrong:
        (problem,) = wrong.problems
    return UserScores(function, [], [replace(problem, severity="warning")])


def _parts(function: str) -> tuple[Path, str]:
    parts = FUNCTION.fullmatch(function)
    if parts is None or parts["given"] is not None:
        raise USER_FUNCTION.error("metrics.functions", f"{function!r} is not of the form FILE.py:FUNCTION")
    return absolute(parts["file"]), parts["name"]


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as unreadable:
        raise USER_FUNCTION.error(file, f"it cannot be read: {unreadable.strerror or unreadable}") from unreadable


def _scores(value: Any, name: str, where: str) -> Scores:
    if value is None:
        return {}
    named = value if isinstance(value, dict) else {name: value}
    for key, number in named.items():
        if not is_number(number):
            raise USER_FUNCTION.error(where, f"{key[:80]} is {str(number)[:80]!r}, not a number")
    if len(named) > MOST_NAMES or any(len(key) > LONGEST_NAME for key in named):
        raise USER_FUNCTION.error(where, f"{len(named)} scores; at most {MOST_NAMES} with short names are taken")
    return {key: float(number) for key, number in named.items()}
