"""Reads an annotation file, a JSON list or JSONL, into rows as they were written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Raw

from vidqa.data.json_list import (
    BOM,
    WRITE_AGAIN,
    elements_of,
    reached_the_end,
    truncated_list,
    truncated_record,
    value_of,
)
from vidqa.data.problem_collector import ProblemCollector
from vidqa.data.problems import EMPTY, FIELD, FILE_MISSING, SYNTAX

DEEPEST = 64  # lists and objects within each other in a record; more could be read and then not be written
TOO_DEEP = f"nested too deeply: more than {DEEPEST} lists and objects within each other"
NAMES = ("annotations.json", "annotations.jsonl")  # looked for in a dataset folder


def annotation_file(annotation_path: str | Path) -> Path:
    """The annotation file that `annotation_path` means: itself, or annotations.json(l) inside it (root mode)."""
    path = Path(os.path.expanduser(annotation_path))
    if not str(annotation_path):
        raise FILE_MISSING.error("annotation_path", "no annotation path is given")
    if os.path.isdir(path):  # False, too, for a name that no file can have
        file = next((path / name for name in NAMES if (path / name).is_file()), None)
        if file is None:
            raise FILE_MISSING.error(path, f"the folder holds neither {' nor '.join(NAMES)}")
        return file
    if not os.path.isfile(path):
        raise FILE_MISSING.error(path, "there is no such file")
    return path


def read_rows(path: Path, collector: ProblemCollector) -> Iterator[tuple[int, Any]]:
    """Every row of the file with its index. Rows that cannot be read become problems; the others are still given."""
    try:
        data = path.read_bytes()
    except OSError as broken:
        collector.add(FILE_MISSING, str(path), f"cannot be read: {broken.strerror or broken}")
        return
    yield from rows_in(data, path, collector)


def rows_in(data: bytes, path: str | Path, collector: ProblemCollector) -> Iterator[tuple[int, Any]]:
    """Every row of a file's content, as `read_rows` gives them."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        _not_text(path, broken, collector)
        return
    start = text.lstrip()[:1]
    if not start:
        collector.add(EMPTY, str(path), "the file is empty")
    elif start == "[":
        elements = elements_of(data.removeprefix(BOM))
        if elements is not None:
            del text  # as large as the file
            yield from _list_rows(path, elements, collector)
        else:
            yield from _list_rows(path, _json_list(path, text, collector), collector)
    elif start == "{" and (str(path).endswith(".jsonl") or _first_line_is_whole(text)):
        yield from _jsonl_rows(path, text, collector)
    else:
        _not_a_list(path, text, collector)


def _not_text(path: str | Path, broken: UnicodeDecodeError, collector: ProblemCollector) -> None:
    if broken.reason == "unexpected end of data":  # the last character is not whole
        text = broken.object[: broken.start].decode("utf-8-sig")
        if text.lstrip().startswith("[") and _json_list(path, text, collector) is None:
            return  # with a problem that says where it ends
    collector.add(SYNTAX, str(path), f"not UTF-8 text: byte {broken.start} is {broken.object[broken.start]:#04x}")


def _first_line_is_whole(text: str) -> bool:
    try:
        json.loads(text.lstrip().split("\n", 1)[0])
    except (ValueError, RecursionError):
        return False
    return True


def _json_list(path: str | Path, text: str, collector: ProblemCollector) -> list[Any] | None:
    """What the json module makes of a list; None, and a finding, where it is wrong."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as broken:
        if isinstance(broken, json.JSONDecodeError) and (ended := truncated_list(text, broken)):
            collector.add(SYNTAX, f"{path}:{_last_line(text)}", ended, WRITE_AGAIN)
        else:
            collector.add(SYNTAX, _line(path, 1, broken), f"not valid JSON: {_reason(broken)}")
        return None


def _list_rows(path: str | Path, rows: list[Any] | None, collector: ProblemCollector) -> Iterator[tuple[int, Any]]:
    if rows is None:
        return
    if not rows:
        collector.add(EMPTY, str(path), "the list is empty")
    for index, row in enumerate(rows):
        try:
            value = value_of(row) if isinstance(row, Raw) else row
        except (ValueError, RecursionError) as broken:  # a number of thousands of digits
            collector.add(SYNTAX, f"{path}[{index}]", f"not valid JSON: {_reason(broken)}")
            continue
        if is_deep(value):
            collector.add(SYNTAX, f"{path}[{index}]", TOO_DEEP)
        else:
            yield index, value


def _jsonl_rows(path: str | Path, text: str, collector: ProblemCollector) -> Iterator[tuple[int, Any]]:
    index = whole = 0
    last = _last_line(text)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as broken:
            if number == last and isinstance(broken, json.JSONDecodeError) and reached_the_end(broken):
                collector.add(SYNTAX, f"{path}:{number}", truncated_record(index + 1, whole), WRITE_AGAIN)
            else:
                collector.add(SYNTAX, _line(path, number, broken), f"not valid JSON: {_reason(broken)}")
        else:
            whole += 1
            if is_deep(row):
                collector.add(SYNTAX, f"{path}:{number}", TOO_DEEP)
            else:
                yield index, row
        index += 1


def is_deep(value: Any, left: int = DEEPEST) -> bool:
    """Whether more than `left` lists and objects lie within each other."""
    kind = type(value)  # as JSON gives it: nearly every row is shallow, which this tells in a microsecond or two
    if kind is not dict and kind is not list:
        return False
    if not left:
        return True
    for item in value.values() if kind is dict else value:
        if type(item) in (dict, list) and is_deep(item, left - 1):
            return True
    return False


def _not_a_list(path: str | Path, text: str, collector: ProblemCollector) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as broken:
        collector.add(SYNTAX, _line(path, 1, broken), f"not valid JSON: {_reason(broken)}")
        return
    keys = f" with the keys {', '.join(map(repr, list(value)[:5]))}" if isinstance(value, dict) else ""
    collector.add(FIELD, str(path), f"expected a list of records, got {type_name(value)}{keys}")


def _last_line(text: str) -> int:
    return text.rstrip().count("\n") + 1


def _line(path: str | Path, number: int, broken: Exception) -> str:
    within = broken.lineno - 1 if isinstance(broken, json.JSONDecodeError) else 0
    return f"{path}:{number + within}"


def _reason(broken: Exception) -> str:
    if isinstance(broken, json.JSONDecodeError):
        return f"{broken.msg.removesuffix(' at')} at column {broken.colno}"
    return "nested too deeply" if isinstance(broken, RecursionError) else str(broken)


def type_name(value: object) -> str:
    """A JSON value's type in JSON's own words."""
    names = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
