"""What is wrong with one row, told with its place and its id."""

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
    """A part of a row is wrong, as the collector has heard: whatever it is a part of has no value either."""


class RowFindings:
    """Tells `collector` what is wrong with the row at `place`; `id` is set once that is read."""

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
        """Names a value of a wrong type, and raises Invalid."""
        message = f"expected {expected}, got {type_name(value)}: {SHORT.repr(value)}"
        self.wrong(problems.FIELD, field, message, f"write it as {example}")
        raise Invalid

    def attempt(self, read: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value | None:
        """What a function reads; None where it finds something invalid."""
        try:
            return read(*args, **kwargs)
        except Invalid:
            return None

    def unused(self, field: str, names: Iterable[str]) -> None:
        if shown := ", ".join(names):
            self.wrong(problems.LEFT_OUT, field, f"not used: {shown}", severity="warning")
