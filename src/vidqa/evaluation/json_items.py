"""Reads the objects of a large JSON list or JSON lines file one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vidqa.core.problem import Problem
from vidqa.data.json_list import BOM, elements_of, value_of, values_in
from vidqa.evaluation.problems import RESULTS_SYNTAX

WRAPPERS = ("results", "annotations", "data")
CUT = "resume the evaluation; the last line, cut short by a kill, was left out"
_SPACE = " \t\r\n"
_WRONG = (ValueError, RecursionError)  # no JSON, nested too deeply, or a number of thousands of digits


def json_items(data: bytes, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """(index, value) of each element of a list, of `{"results": [...]}`, or of each line of JSON lines.

    What cannot be read goes to `problems` (RESULTS_SYNTAX; a cut last line is only a warning).
    """
    data = data.removeprefix(BOM)
    head = data[:4096].decode("utf-8", "replace").lstrip(_SPACE)
    try:
        if head.startswith("["):
            yield from _list_items(data, where, problems)
        elif head.startswith("{"):
            yield from _objects(data.decode("utf-8"), where, problems)
        else:
            data.decode("utf-8")
            got = "is empty" if not head else f"starts with {head[:20]!r}"
            problems.append(RESULTS_SYNTAX.at(where, f"the file {got}; a list or objects are expected"))
    except UnicodeDecodeError:
        problems.append(RESULTS_SYNTAX.at(where, f"the file is not UTF-8 text: {_first_wrong_byte(data)}"))


def _first_wrong_byte(data: bytes) -> str:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as wrong:
        return f"{wrong.reason} at byte {wrong.start}"
    raise AssertionError("the text is sound")


def _list_items(data: bytes, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    elements, index = elements_of(data), 0
    try:
        for value in values_in(data.decode("utf-8")) if elements is None else map(value_of, elements):
            yield index, value
            index += 1
    except UnicodeDecodeError:
        raise
    except _WRONG as wrong:
        problems.append(RESULTS_SYNTAX.at(f"{where}[{index}]", _fault(wrong)))


def _fault(wrong: Exception) -> str:
    if isinstance(wrong, json.JSONDecodeError):
        return f"{wrong.msg} after {wrong.doc[max(0, wrong.pos - 30) : wrong.pos]!r}"
    return f"a value that cannot be read: {wrong}"


def _objects(text: str, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """One object that holds a list, or one object per line."""
    try:
        first = json.loads(text.lstrip(_SPACE).partition("\n")[0])
    except _WRONG:
        first = None
    if first is not None and _wrapper(first) is None:
        yield from _lines(text, where, problems)
        return
    try:
        whole = json.loads(text)
    except _WRONG as wrong:
        problems.append(RESULTS_SYNTAX.at(where, _fault(wrong)))
        return
    name = _wrapper(whole)
    if name is None:
        keys = ", ".join(map(repr, list(whole)[:6]))
        problems.append(RESULTS_SYNTAX.at(where, f"an object with the keys {keys} holds no list of results"))
    else:
        yield from enumerate(whole[name])


def _wrapper(value: Any) -> str | None:
    return next((name for name in WRAPPERS if isinstance(value, dict) and isinstance(value.get(name), list)), None)


def _lines(text: str, where: str, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """One value per line. Only "\\n" ends a line: JSON strings may hold other line separators."""
    lines, index = text.split("\n"), 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield index, json.loads(line)
        except _WRONG as wrong:
            severity = "warning" if number == len(lines) else "error"
            remedy = CUT if number == len(lines) else None
            problems.append(RESULTS_SYNTAX.at(f"{where}:{number}", _fault(wrong), remedy, severity=severity))
        index += 1
