"""Reads the objects of a large JSON list or JSON lines file one at a time, in constant memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

import msgspec

from vidqa.contract.problem import Problem
from vidqa.evaluation.problems import RESULTS_SHAPE, RESULTS_SYNTAX, RESULTS_TAIL_CUT

BLOCK = 1 << 18  # characters read at a time
WRAPPERS = ("results", "annotations", "data")
_DECODER = json.JSONDecoder()
_FAST = msgspec.json.Decoder()
_BETWEEN = re.compile(r'\}\s*,\s*\{\s*"[^"\\]*"\s*:')
_SPACE = " \t\r\n"


def json_items(stream: TextIO, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """(index, value) of each element of a list, of `{"results": [...]}`, or of each line of JSON lines.

    What cannot be read goes to `problems` (RESULTS_SYNTAX, RESULTS_SHAPE; a cut last line is only a warning).
    """
    try:
        head = stream.read(BLOCK).lstrip(_SPACE + "\ufeff")
        if head.startswith("["):
            yield from _list_items(stream, head[1:], where, problems)
        elif head.startswith("{"):
            yield from _objects(stream, head, where, problems)
        else:
            got = "is empty" if not head else f"starts with {head[:20]!r}"
            problems.append(RESULTS_SHAPE.at(where, f"the file {got}; a list or objects are expected"))
    except UnicodeDecodeError as wrong:
        problems.append(RESULTS_SYNTAX.at(where, f"the file is not UTF-8 text: {wrong.reason} at byte {wrong.start}"))


def _list_items(stream: TextIO, buffer: str, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    index, at, careful, ended = 0, 0, 0, False
    between = ""  # how an element ends and the next one begins
    while True:
        cut = buffer.rfind(between, max(at, careful)) + 1 if between else 0
        if cut and (values := _decode_many(buffer[at:cut])) is not None:
            yield from enumerate(values, index)
            index, at = index + len(values), cut
        careful = max(careful, cut)
        at = _skip(buffer, at, _SPACE + ",")
        if at < len(buffer) and buffer[at] == "]":
            return
        value, end, fault = _decode(buffer, at)
        # A value that reaches the end of what was read may go on: read more before believing it.
        if (fault or end >= len(buffer)) and not ended:
            more = stream.read(max(BLOCK, len(buffer) - at))
            ended = not more
            buffer, at, careful = buffer[at:] + more, 0, 0
            continue
        if fault:
            problems.append(RESULTS_SYNTAX.at(f"{where}[{index}]", fault))
            return
        yield index, value
        index, at = index + 1, end
        if not between and (found := _BETWEEN.match(buffer, end - 1)):
            between = found[0]


def _decode_many(elements: str) -> list[Any] | None:
    """The elements of a part of a list, read at once; None where the part does not end with an element, or where one
    needs the patient decoder (NaN, half a surrogate pair), or is wrong. What both decoders read, they read alike."""
    elements = elements.lstrip(_SPACE + ",")
    try:
        return _FAST.decode(f"[{elements}]")
    except (msgspec.DecodeError, RecursionError):
        return None


def _decode(buffer: str, at: int) -> tuple[Any, int, str]:
    """(value, end, fault); the fault says why nothing could be read at `at`."""
    try:
        value, end = _DECODER.raw_decode(buffer, at)
        return value, end, ""
    except json.JSONDecodeError as wrong:
        return None, at, f"{wrong.msg} after {buffer[max(at, wrong.pos - 30) : wrong.pos]!r}"
    except (RecursionError, ValueError) as wrong:  # nested too deep, or a number of thousands of digits
        return None, at, f"a value that cannot be read: {wrong}"


def _skip(buffer: str, at: int, what: str) -> int:
    while at < len(buffer) and buffer[at] in what:
        at += 1
    return at


def _objects(stream: TextIO, head: str, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """One object that holds a list, or one object per line."""
    first = head.partition("\n")[0]
    value, end, fault = _decode(first, 0)
    if not fault and not first[end:].strip() and not _inner(value):
        yield from _lines(stream, head, where, problems)
        return
    text = head + stream.read()
    value, end, fault = _decode(text, 0)
    if fault:
        problems.append(RESULTS_SYNTAX.at(where, fault))
    elif (name := _inner(value)) is None:
        keys = ", ".join(map(repr, list(value)[:6]))
        problems.append(RESULTS_SHAPE.at(where, f"an object with the keys {keys} holds no list of results"))
    else:
        yield from enumerate(value[name])


def _inner(value: Any) -> str | None:
    return next((name for name in WRAPPERS if isinstance(value, dict) and isinstance(value.get(name), list)), None)


def _lines(stream: TextIO, head: str, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """One value per line. Only "\\n" ends a line: JSON strings may hold other line separators."""
    rest, index, number = head, 0, 0
    while rest:
        more = stream.read(BLOCK)
        lines = (rest + more).split("\n")
        rest = lines.pop() if more else ""
        for line in lines:
            number += 1
            if not line.strip():
                continue
            value, end, fault = _decode(line, _skip(line, 0, _SPACE))
            if not fault and line[end:].strip():
                fault = f"more than one value: {line[end : end + 20]!r} follows the first"
            if not fault:
                yield index, value
            elif not more and line is lines[-1]:
                problems.append(RESULTS_TAIL_CUT.at(f"{where}:{number}", fault, severity="warning"))
            else:
                problems.append(RESULTS_SYNTAX.at(f"{where}:{number}", fault))
            index += 1
