"""What a source of records is, and what a kind of source declares.

A source gives rows: objects with the fields of an annotation. Records are made of rows in one place (`load.py`), so
that every source has the same checks, the same problems and the same places in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.data.media import MediaSource
from vidqa.data.problem_collector import ProblemCollector

Rows = Iterator[tuple[int, Any]]  # each with its index


@dataclass(frozen=True)
class Source:
    """An opened source. Opening reads no row.

    `path` names it in problems, its last part in records. `rows` gives every row in order, the same ones each time;
    what cannot be read becomes a finding, and the others are still given. `fingerprint` changes when a row does; it
    reads no record and no medium. With `by_line` the indices of rows are the lines on which they begin. `is_annotated`
    is false of media alone, whose rows hold no conversation.
    """

    path: Path
    media: MediaSource
    rows: Callable[[ProblemCollector], Rows]
    fingerprint: Callable[[], str]
    by_line: bool = False
    is_annotated: bool = True


@dataclass(frozen=True)
class SourceKind:
    """One way in which records are kept. `recognises` tells by what lies at a path; the first kind that does opens it.

    `open` takes the path and the media path, "" where media are named relative to the source itself. It raises the
    problems of paths that do not exist. Both get the part behind `#` only where `reads_part` says that the kind gives
    it a meaning of its own; otherwise it is a split, and `open_source` cuts the rows.
    """

    name: str
    recognises: Callable[[str], bool]
    open: Callable[[str, str], Source]
    reads_part: Callable[[str], bool] = lambda part: False
