"""Output files that never replace another one in silence: the same content is left alone, a different one refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vidqa.core.files import replacing
from vidqa.core.problem import ProblemError
from vidqa.data.problems import NO_SPACE, OUTPUT_EXISTS


def write_new(files: Mapping[Path, bytes]) -> bool:
    """Write all files; False where every one of them is there already with this very content.

    Nothing is written if any of them is there with another content. Raises DATA_OUTPUT_EXISTS,
    STORAGE_NO_SPACE.
    """
    there = {path: _content(path) for path in files}
    other = [path for path, content in there.items() if content is not None and content != files[path]]
    if other:
        raise ProblemError([OUTPUT_EXISTS.at(path, "the file is there and holds something else") for path in other])
    new = [path for path, content in there.items() if content is None]
    for path in new:
        _write(path, files[path])
    return bool(new)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.exists() else None
    except OSError as refused:
        raise OUTPUT_EXISTS.error(path, f"something is there that is no file: {refused.strerror}") from refused


def write_page(path: Path, html: str) -> None:
    """A page is made anew every time. Raises STORAGE_NO_SPACE."""
    _write(path, html.encode("utf-8", "replace"))


def _write(path: Path, content: bytes) -> None:
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as refused:
        raise NO_SPACE.error(path, f"cannot be written: {refused.strerror or refused}") from refused


def json_list(rows: Iterable[Any]) -> bytes:
    """A JSON list, one row a line, so that it can be read, compared and cut by line."""
    return b"[\n" + b",\n".join(map(_line, rows)) + b"\n]\n"


def json_lines(rows: Iterable[Any]) -> bytes:
    return b"".join(_line(row) + b"\n" for row in rows)


def json_page(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _line(row: Any) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, in a field that no one reads
        return json.dumps(row).encode()
