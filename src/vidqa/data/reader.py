"""Read JSON lists and JSON lines, of annotations and of results, into rows as they were written.

A large list is split into its elements, which are decoded one by one.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from vidqa.core.files import ANNOTATION_NAMES, annotations_in_folder
from vidqa.core.problem import Code, ProblemError
from vidqa.data.problems import EMPTY, FIELD, FILE_MISSING, SYNTAX, ProblemCollector, missing_file

BOM = b"\xef\xbb\xbf"
DEEPEST = 64  # nesting levels of lists and objects in a record; Python can read more levels than it can write
TOO_DEEP = f"nested too deeply: more than {DEEPEST} lists and objects within each other"
MEANT = (".json", ".jsonl", ".csv", ".tsv", ".parquet")  # files suggested for a folder without annotations
WRITE_AGAIN = "The file is truncated, by a full disk or an interrupted copy: write or copy it again."
LONGEST_ESCAPE = 6  # characters, as of \\u00e9
BLANK = " \t\r\n"  # JSON's whitespace: str.strip() also removes control characters, which JSON does not allow
LITERALS = ("true", "false", "null")
WRONG = (ValueError, RecursionError)  # invalid JSON, nested too deeply, or a number of thousands of digits
_CUT = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder()
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_KEY = re.compile(rb'"[ \t\r\n]*:')  # the end of a key; in a string also text after an escaped quote


class Fault(NamedTuple):
    """A part of a file that is not a row. `place` follows the file's name: ":LINE", "[INDEX]", or "" for the whole
    file. `element` is the index of the first incomplete or invalid element of a list."""

    code: Code
    place: str
    message: str
    is_truncated: bool = False
    element: int | None = None


def no_annotations(folder: Path, message: str) -> ProblemError:
    """DATA_FILE_MISSING of a folder, with a file in it as the suggested remedy."""
    files: list[str] = []
    with suppress(OSError):
        files = sorted(str(path) for path in folder.iterdir() if path.suffix.lower() in MEANT and path.is_file())
    remedy = f"name the file itself, such as {files[0]}, or call it {ANNOTATION_NAMES[0]}" if files else None
    return missing_file(folder, message, remedy)


def annotation_file(annotation_path: str | Path) -> Path:
    """The annotation file of `annotation_path`: the path itself, or annotations.json(l) inside it (root mode)."""
    path = Path(os.path.expanduser(annotation_path))
    if not str(annotation_path):
        raise FILE_MISSING.error("annotation_path", "no annotation path is given")
    if os.path.isdir(path):  # False, too, for an invalid file name
        if (file := annotations_in_folder(path)) is None:
            raise no_annotations(path, f"the folder contains neither {' nor '.join(ANNOTATION_NAMES)}")
        return file
    if not os.path.isfile(path):
        raise missing_file(path, "there is no such file")
    return path


def read_rows(path: Path, collector: ProblemCollector) -> Iterator[tuple[int, Any]]:
    """Yield (index, row) for every row of the file. Rows that cannot be read become problems; others follow."""
    try:
        data = path.read_bytes()
    except OSError as broken:
        collector.add(FILE_MISSING, str(path), f"cannot be read: {broken.strerror or broken}")
        return
    yield from rows_in(data, path, collector)


def rows_in(data: bytes, path: str | Path, collector: ProblemCollector) -> Iterator[tuple[int, Any]]:
    """Yield every row of a file's content, as `read_rows` does."""
    for row in json_rows(data, by_line=str(path).endswith(".jsonl")):
        if isinstance(row, Fault):
            remedy = WRITE_AGAIN if row.is_truncated else None
            collector.add(row.code, f"{path}{row.place}", row.message, remedy)
        else:
            yield row


def json_rows(
    data: bytes, *, by_line: bool = False, wrappers: Container[str] = ()
) -> Iterator[tuple[int, Any] | Fault]:
    """Yield (index, value) of each element of a list, or of each line of JSON lines, and a Fault for the rest.

    A file is JSON lines if its first line is a whole object, or with `by_line` if it begins with "{". If the file is an
    object with a list under one of the names `wrappers`, that list is read.
    """
    data = data.removeprefix(BOM)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as broken:
        yield from _not_text(broken)
        return
    start = text.lstrip(BLANK)[:1]
    if not start:
        yield Fault(EMPTY, "", "the file is empty")
    elif start == "[":
        try:
            elements = _CUT.decode(data)
        except (msgspec.DecodeError, RecursionError):  # invalid, or accepted by the json module alone, such as NaN
            yield from _list_rows(text)
        else:
            del text  # as large as the file
            yield from _elements(elements)
    else:
        first = _value_or_none(text.lstrip(BLANK).split("\n", 1)[0])
        is_lines = start == "{" and (by_line or (isinstance(first, dict) and _wrapped(first, wrappers) is None))
        yield from _lines(text) if is_lines else _object(text, wrappers)


def _elements(elements: list[Any]) -> Iterator[tuple[int, Any] | Fault]:
    if not elements:
        yield Fault(EMPTY, "", "the list is empty")
    for index, element in enumerate(elements):
        try:
            value = value_of(element) if isinstance(element, msgspec.Raw) else element
        except WRONG as broken:
            yield Fault(SYNTAX, f"[{index}]", f"not valid JSON: {_reason(broken)}", element=index)
        else:
            yield Fault(SYNTAX, f"[{index}]", TOO_DEEP, element=index) if is_deep(value) else (index, value)


def value_of(element: msgspec.Raw) -> Any:
    """Decode one element as `loads` does. Raises ValueError, RecursionError."""
    text = bytes(element)
    with suppress(*WRONG):  # lone surrogates, deep nesting; where both decoders accept a value, they agree
        if len(_KEY.findall(text)) == _keys(value := _VALUE.decode(element)):
            return value  # else a key is repeated, or a string looks like one
    return loads(text.decode("utf-8"))


def _keys(value: Any) -> int:
    """Number of keys of a value's objects."""
    if not isinstance(value, dict | list):
        return 0
    return len(value) + sum(map(_keys, value.values())) if isinstance(value, dict) else sum(map(_keys, value))


class RepeatedKeyError(ValueError):
    """A JSON object repeats a key, of which the json module takes the last."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise RepeatedKeyError(f"an object repeats the key {repeated!r}")
    return fields


_PATIENT = json.JSONDecoder(object_pairs_hook=_distinct)
loads = _PATIENT.decode  # as json.loads; raises RepeatedKeyError, too


def _list_rows(text: str) -> Iterator[tuple[int, Any] | Fault]:
    """Decode a list by the json module; of a broken list the elements before the error."""
    try:
        rows = loads(text)
    except WRONG as broken:
        yield from _before(text, broken)
    else:
        yield from _elements(rows)


def _before(text: str, broken: Exception) -> Iterator[tuple[int, Any] | Fault]:
    end = broken.pos if isinstance(broken, json.JSONDecodeError) else len(text)
    at, index = _past(text, text.index("[") + 1), 0
    is_inside = False
    while at < end and not is_inside:
        try:
            value, at = _PATIENT.raw_decode(text, at)
        except WRONG:
            is_inside = True
        else:
            yield index, value
            index, at = index + 1, _past(text, at)
    if not _reached_the_end(broken):
        line = broken.lineno if isinstance(broken, json.JSONDecodeError) else 1
        yield Fault(SYNTAX, f":{line}", f"not valid JSON: {_reason(broken)}", element=index)
        return
    message = f"the file ends after {index} whole record{'s' * (index != 1)}, without the ] of the list"
    message = _truncated_record(index) if is_inside else message
    yield Fault(SYNTAX, f":{text.rstrip(BLANK).count(chr(10)) + 1}", message, is_truncated=True, element=index)


def _past(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _lines(text: str) -> Iterator[tuple[int, Any] | Fault]:
    """Yield one value per line. Only "\\n" ends a line: JSON strings may hold other line separators."""
    index = whole = 0
    lines = text.rstrip(BLANK).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip(BLANK):
            continue
        try:
            value = loads(line)
        except WRONG as broken:
            is_cut = number == len(lines) and _reached_the_end(broken)
            message = _truncated_record(index, whole) if is_cut else f"not valid JSON: {_reason(broken)}"
            yield Fault(SYNTAX, f":{number}", message, is_cut)
        else:
            whole += 1
            yield Fault(SYNTAX, f":{number}", TOO_DEEP) if is_deep(value) else (index, value)
        index += 1


def _object(text: str, wrappers: Container[str]) -> Iterator[tuple[int, Any] | Fault]:
    """Read one value that is not a list; an object may wrap one."""
    try:
        value = loads(text)
    except WRONG as broken:
        line = broken.lineno if isinstance(broken, json.JSONDecodeError) else 1
        yield Fault(SYNTAX, f":{line}", f"not valid JSON: {_reason(broken)}")
        return
    if (rows := _wrapped(value, wrappers)) is not None:
        yield from enumerate(rows)
        return
    keys = f" with the keys {', '.join(map(repr, list(value)[:5]))}" if isinstance(value, dict) else ""
    yield Fault(FIELD, "", f"expected a list of records, got {type_name(value)}{keys}")


def _wrapped(value: Any, wrappers: Container[str]) -> list[Any] | None:
    named = value.items() if isinstance(value, dict) else ()
    return next((rows for name, rows in named if name in wrappers and isinstance(rows, list)), None)


def _value_or_none(text: str) -> Any:
    try:
        return loads(text)
    except WRONG:
        return None


def _not_text(broken: UnicodeDecodeError) -> Iterator[tuple[int, Any] | Fault]:
    if broken.reason == "unexpected end of data":  # the last character is incomplete
        text = broken.object[: broken.start].decode("utf-8")
        if text.lstrip(BLANK).startswith("["):
            yield from _list_rows(text)  # with a Fault that locates the end
            return
    yield Fault(SYNTAX, "", f"not UTF-8 text: byte {broken.start} is {broken.object[broken.start]:#04x}")


def _truncated_record(index: int, whole: int | None = None) -> str:
    """The message for a file that ends inside a record; `whole` counts complete records before it (None: all)."""
    whole = index if whole is None else whole
    are = f"{whole} are" if whole > 1 else "1 is" if whole else "none is"
    return f"the file ends in the middle of record {index + 1}, {are} complete"


def _reached_the_end(broken: Exception) -> bool:
    """Whether a parser failed at the end of the text, rather than at invalid text."""
    if not isinstance(broken, json.JSONDecodeError):
        return False
    rest = broken.doc[broken.pos :].rstrip(BLANK)
    if broken.msg.startswith("Unterminated string"):
        return True
    if broken.msg.startswith("Invalid \\"):
        return len(rest) < LONGEST_ESCAPE
    return rest in ("", "-") or any(word.startswith(rest) and word != rest for word in LITERALS)


def is_deep(value: Any, left: int = DEEPEST) -> bool:
    """Whether lists and objects are nested in more than `left` levels."""
    kind = type(value)  # exact types, as JSON gives them: a check of a shallow row takes only a microsecond or two
    if kind is not dict and kind is not list:
        return False
    if not left:
        return True
    for item in value.values() if kind is dict else value:
        if type(item) in (dict, list) and is_deep(item, left - 1):
            return True
    return False


def _reason(broken: Exception) -> str:
    if isinstance(broken, json.JSONDecodeError):
        return f"{broken.msg.removesuffix(' at')} at column {broken.colno}"
    return "nested too deeply" if isinstance(broken, RecursionError) else str(broken)


def type_name(value: object) -> str:
    """The type of a JSON value, in JSON's terms."""
    names = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
