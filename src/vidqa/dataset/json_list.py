"""Cuts a large JSON list into its elements at once; each becomes a value when it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

BOM = b"\xef\xbb\xbf"
_CUT = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder()
_PATIENT = json.JSONDecoder()
_BETWEEN = re.compile(r"[ \t\r\n,]*")


def elements_of(data: bytes) -> list[msgspec.Raw] | None:
    """The elements of a JSON list, not read yet; None where it is no list, or one that msgspec refuses: it is wrong,
    or holds what only Python's own module takes, such as NaN."""
    try:
        return _CUT.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def value_of(element: msgspec.Raw) -> Any:
    """The value of one element, as the json module gives it. Raises ValueError, RecursionError."""
    try:
        return _VALUE.decode(element)
    except (ValueError, RecursionError):  # half a surrogate pair, deep nesting: both decoders read what both take alike
        return json.loads(bytes(element).decode("utf-8"))


def values_in(text: str) -> Iterator[Any]:
    """The values of a list one by one, up to the first that is wrong. Raises JSONDecodeError with its place in `text`,
    and what else the json module raises."""
    at = _past(text, text.index("[") + 1)
    while text[at : at + 1] != "]":
        value, at = _PATIENT.raw_decode(text, at)
        yield value
        at = _past(text, at)


def _past(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at
