"""Problems of one row, with its location and id."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from typing import NoReturn, ParamSpec, TypeVar

from vidqa.core.problem import Code
from vidqa.data import problems
from vidqa.data.problems import ProblemCollector
from vidqa.data.reader import type_name

SHORT = reprlib.Repr()  # values in messages: bounded in length and in depth
SHORT.maxstring = SHORT.maxother = 60
LONGEST = 500  # characters of a message
Value = TypeVar("Value")
Args = ParamSpec("Args")


class Invalid(Exception):
    """A part of a row is invalid and already reported; every part that contains it has no value either."""


class RowFindings:
    """Reporter of problems of the row at `place` to `collector`; `id` is set once it is read."""

    def __init__(self, collector: ProblemCollector, place: Callable[[], str]) -> None:
        self.collector, self.place = collector, place
        self.id: str | None = None

    def where(self, field: str) -> str:
        shown = f" id {SHORT.repr(self.id)}" if self.id is not None else ""
        return f"{self.place()}{shown}{' ' + field if field else ''}"

    def wrong(self, code: Code, field: str, message: str, remedy: str | None = None, severity: str = "error") -> None:
        remedy = remedy[:LONGEST] if remedy else None
        self.collector.add(code, self.where(field), message[:LONGEST], remedy, severity)

    def invalid(self, field: str, expected: str, value: object, example: str) -> NoReturn:
        """Report a value of a wrong type, and raise Invalid."""
        message = f"expected {expected}, got {type_name(value)}: {SHORT.repr(value)}"
        self.wrong(problems.FIELD, field, message, f"write it as {example}")
        raise Invalid

    def attempt(self, read: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value | None:
        """Call `read`; None where it raises Invalid."""
        try:
            return read(*args, **kwargs)
        except Invalid:
            return None

    def unused(self, field: str, names: Iterable[str]) -> None:
        if shown := ", ".join(names):
            self.wrong(problems.LEFT_OUT, field, f"not used: {shown}", severity="warning")
