"""JSON lists: a large one is cut into its elements, which are decoded one by one; how a truncated one ends."""

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
WRITE_AGAIN = "The file was cut off, by a full disk or a copy that was broken off: write or copy it again."
LONGEST_ESCAPE = 6  # characters, as of \u00e9
LITERALS = ("true", "false", "null")


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


def truncated_list(text: str, broken: json.JSONDecodeError) -> str | None:
    """How a JSON list that was cut off ends, in words; None where the parser failed for another reason."""
    if not reached_the_end(broken):
        return None
    at, whole = _past(text, text.index("[") + 1), 0
    while at < len(text):
        try:
            _, at = _PATIENT.raw_decode(text, at)
        except (ValueError, RecursionError):
            return truncated_record(whole + 1, whole)
        whole, at = whole + 1, _past(text, at)
    return f"the file ends after {whole} whole record{'s' * (whole != 1)}, without the ] of the list"


def truncated_record(number: int, whole: int) -> str:
    """A file that ends in the middle of its record `number`, counted from 1."""
    are = f"{whole} are" if whole > 1 else "1 is" if whole else "none is"
    return f"the file ends in the middle of record {number}, {are} whole"


def reached_the_end(broken: json.JSONDecodeError) -> bool:
    """Whether a parser failed because there was no more text, rather than at something wrong."""
    rest = broken.doc[broken.pos :].rstrip()
    if broken.msg.startswith("Unterminated string"):
        return True
    if broken.msg.startswith("Invalid \\"):
        return len(rest) < LONGEST_ESCAPE
    return rest in ("", "-") or any(word.startswith(rest) and word != rest for word in LITERALS)
