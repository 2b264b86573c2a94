"""What a source of records is, and what a kind of source declares.

A source gives rows: objects with the fields of an annotation. Records are made of rows in one place (`load.py`), so
that every source has the same checks, the same problems and the same places in messages.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from vidqa.data.data_files import require_split_of
from vidqa.data.media import MediaSource
from vidqa.data.problem_collector import ProblemCollector
from vidqa.data.problems import EMPTY
from vidqa.data.split_syntax import Cut, subset_and_cuts

Row = TypeVar("Row")
Names = Mapping[str, str]  # of fields, with the names that are written
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

    `open` takes the path, the media path, "" where media are named relative to the source itself, and the fields to
    rename: {"video": "recording"}. A kind that does not rename them itself (`renames`) leaves it to `open_source`. It
    raises the problems of paths that do not exist. Both functions get the part behind `#` only where `reads_part` says
    that the kind gives it a meaning of its own; otherwise it is a split, and `open_source` cuts the rows.
    """

    name: str
    recognises: Callable[[str], bool]
    open: Callable[[str, str, Names], Source]
    reads_part: Callable[[str], bool] = lambda part: False
    renames: bool = False


def part_of(source: Source, part: str) -> Source:
    """The source with the rows of `part` alone, which keep their indices; with all rows where `part` is empty.

    Raises DATA_SPLIT for a subset, and for a split that is not the one which the file holds.
    """
    if not part:
        return source
    subset, cuts = subset_and_cuts(part, str(source.path))
    for cut in cuts:
        require_split_of(source.path, subset, cut.name)

    def rows(collector: ProblemCollector) -> Rows:
        parts = [(cut, partial(_count, source), partial(source.rows, collector)) for cut in cuts]
        return rows_of_cuts(parts, part, str(source.path), collector)

    def fingerprint() -> str:
        return hashlib.sha256(repr((source.fingerprint(), [cut[1:] for cut in cuts])).encode()).hexdigest()

    return replace(source, rows=rows, fingerprint=fingerprint)


Part = tuple[Cut, Callable[[], int], Callable[[], Iterator[Row]]]  # how many rows there are, and the rows


def rows_of_cuts(parts: Iterable[Part[Row]], part: str, where: str, collector: ProblemCollector) -> Iterator[Row]:
    """The rows of all cuts, in order; that there is none is a problem at `where`. Rows are only counted for a cut that
    is written from the end, or by share."""
    is_empty = True
    for cut, count, rows in parts:
        span = cut.range_of(count() if cut.needs_count else sys.maxsize)
        for row in islice(rows(), span.start, span.stop):
            is_empty = False
            yield row
    if is_empty and not collector.errors:
        collector.add(EMPTY, where, f"no row of {part or 'it'} is there")


def _count(source: Source) -> int:
    return sum(1 for _ in source.rows(ProblemCollector(str(source.path))))
