"""A user's own function that yields records: `my_module.py:records`, or `my_module.py:records#WORD`, which it is given.

What it yields in its own process is checked like any other record.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.core.files import content_hash
from vidqa.core.user_function import UserFunction, UserFunctionError
from vidqa.data.foreign_rows import question_row
from vidqa.data.media import media_source
from vidqa.data.problems import EMPTY, FILE_MISSING, FUNCTION, ProblemCollector
from vidqa.data.reader import TOO_DEEP, is_deep
from vidqa.data.sources._base import FUNCTION as WRITTEN
from vidqa.data.sources._base import Names, Rows, Source, SourceKind


def _open(path: str, media_path: str, renamed: Names) -> Source:
    """Raises DATA_FILE_MISSING."""
    match = WRITTEN.fullmatch(path)
    assert match is not None  # it was recognised
    file = Path(os.path.abspath(os.path.expanduser(match["file"])))
    if not file.is_file():
        raise FILE_MISSING.error(file, "there is no such Python file", "give FILE.py:FUNCTION")
    name, argument = match["name"], match["given"]

    def rows(collector: ProblemCollector) -> Rows:
        index = -1
        for index, row in enumerate(_yielded(file, name, argument, collector)):
            if is_deep(row):
                collector.add(FUNCTION, f"{file}:{name}[{index}]", TOO_DEEP)
            else:
                yield index, question_row(row)
        if index < 0 and not collector.errors:
            collector.add(EMPTY, f"{file}:{name}", "the function yields no record")

    def fingerprint() -> str:
        read = [content_hash(Path(argument))] if argument and os.path.isfile(argument) else []
        return hashlib.sha256(repr([content_hash(file), name, argument, *read]).encode()).hexdigest()

    return Source(file, media_source(file, media_path, root_mode=False), rows, fingerprint)


def _yielded(file: Path, name: str, argument: str | None, collector: ProblemCollector) -> Iterator[Any]:
    """What the function yields, until it ends or fails, which becomes a finding."""
    try:
        with UserFunction(file, name) as function:
            yield from function.rows([] if argument is None else [argument])
    except UserFunctionError as failed:
        collector.add(FUNCTION, failed.where or f"{file}:{name}", failed.message)


USER_FUNCTION = SourceKind(
    "user's function", lambda path: bool(WRITTEN.fullmatch(path)), _open, reads_part=lambda part: True
)
