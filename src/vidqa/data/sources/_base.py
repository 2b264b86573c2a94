"""Addresses of sources, opened sources, and the declaration of a kind of source. Examples of addresses:

sets/nexar#train[:100]                    a split of a data set folder, or rows of one
sets/reason1#robovqa:understanding        a subset and its split
loaders/mine.py:records#train             a function of the user's, and its argument

A source yields rows: objects with the fields of an annotation. All rows become records in one place (`load.py`), so
that every source has the same checks, the same problems and the same locations in messages.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from vidqa.core.files import absolute
from vidqa.data.media import MediaSource
from vidqa.data.problems import EMPTY, ProblemCollector
from vidqa.data.splits import Cut, require_split_of, subset_and_cuts

FUNCTION = re.compile(r"(?P<file>[^#]+\.py):(?P<name>[A-Za-z_]\w*)(?:#(?P<given>.*))?", re.DOTALL)
CAPTION_FILES = (".yaml", ".yml")  # suffixes of the file named after # for a folder of captions
Row = TypeVar("Row")
Names = Mapping[str, str]  # field names to the written names
Rows = Iterator[tuple[int, Any]]  # (index, row)


def address_of(written: str) -> tuple[str, str]:
    """Split an address into (path, part after `#`, empty for all). An existing file whose name holds `#` is a path."""
    place = os.path.expanduser(written)
    if "#" not in written or os.path.exists(place):
        return place, ""
    place, _, part = place.partition("#")
    return place, part


def file_of(written: str) -> str:
    """The file or folder of a source, which must exist."""
    function = FUNCTION.fullmatch(written)
    if function:
        return function["file"]
    return written if os.path.exists(os.path.expanduser(written)) else written.partition("#")[0]


def read_by(written: str) -> list[str]:
    """Every file and folder that reading a source may need, besides its media: the folder of a user's function, for its
    imports; the target of links in a snapshot of the hub's cache."""
    place, argument = file_of(written), _argument_path(written)
    beside = [argument] if argument else []
    if FUNCTION.fullmatch(written):
        return [os.path.dirname(place) or os.curdir, *beside]
    if "*" in place or "{" in place:
        return [place if os.path.exists(place) else os.path.dirname(place)]
    above = os.path.dirname(place)
    blobs = os.path.join(os.path.dirname(above), "blobs")
    return [place, *([blobs] if os.path.basename(above) == "snapshots" and os.path.isdir(blobs) else []), *beside]


def _argument_path(written: str) -> str:
    """The part after `#` of a user's function or a folder of captions if it is an existing path; else empty."""
    function = FUNCTION.fullmatch(written)
    argument = (function["given"] or "") if function else address_of(written)[1]
    may_be_path = function is not None or argument.lower().endswith(CAPTION_FILES)
    return argument if may_be_path and argument and os.path.exists(os.path.expanduser(argument)) else ""


def functions_in(value: Any) -> list[str]:
    """The user's functions in the value of a spec key: a text, a list, or the keys of a table."""
    return [name for name in ([value] if isinstance(value, str) else value) if FUNCTION.fullmatch(name)]


def with_absolute_functions(value: Any) -> Any:
    """The same value, with absolute paths of its functions."""
    found_anywhere = {name: absolute_source(name) for name in functions_in(value)}
    if isinstance(value, str):
        return found_anywhere.get(value, value)
    if isinstance(value, Mapping):
        return {found_anywhere.get(name, name): weight for name, weight in value.items()}
    return [found_anywhere.get(name, name) for name in value]


def absolute_source(written: str) -> str:
    """The same source with absolute paths, also of its argument where that is a path."""
    place, argument = file_of(written), _argument_path(written)
    rest = written[len(place) :]
    return f"{absolute(place)}{rest.removesuffix(argument)}{absolute(argument) if argument else ''}"


@dataclass(frozen=True)
class Source:
    """An opened source. Opening reads no row.

    `path` names it in problems, its last part in records. `rows` yields every row in order, the same ones at each call;
    rows that cannot be read become problems, and the others still follow. `fingerprint` changes when a row does; it
    reads no record and no medium. With `by_line` row indices are the numbers of the lines on which rows begin.
    `is_annotated` is false for media alone, whose rows hold no conversation.
    """

    path: Path
    media: MediaSource
    rows: Callable[[ProblemCollector], Rows]
    fingerprint: Callable[[], str]
    by_line: bool = False
    is_annotated: bool = True


@dataclass(frozen=True)
class SourceKind:
    """One format of records. `recognises` checks a path and what is there; the first kind that recognises it opens it.

    `open` takes the path, the media path ("" if media are named relative to the source), and the fields to rename:
    {"video": "recording"}. If a kind does not rename fields itself (`renames`), `open_source` does. `open` raises the
    problems of paths that do not exist. Both functions get the path with ~ expanded, and the part after `#` only where
    `reads_part` says that the kind handles it itself; otherwise it is a split, and `open_source` selects the rows.
    """

    name: str
    recognises: Callable[[str], bool]
    open: Callable[[str, str, Names], Source]
    reads_part: Callable[[str], bool] = lambda part: False
    renames: bool = False


def part_of(source: Source, part: str) -> Source:
    """The source with only the rows of `part`, which keep their indices; with all rows if `part` is empty.

    Raises DATA_SPLIT for a subset, and for a split other than that of the file.
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
        return digest_of((source.fingerprint(), [cut[1:] for cut in cuts]))

    return replace(source, rows=rows, fingerprint=fingerprint)


def digest_of(content: object) -> str:
    """sha256 (hex) of everything that a source's rows depend on, for its `fingerprint`."""
    return hashlib.sha256(repr(content).encode("utf-8", "surrogateescape")).hexdigest()


Part = tuple[Cut, Callable[[], int], Callable[[], Iterator[Row]]]  # cut, row count of its split, rows of its split


def rows_of_cuts(parts: Iterable[Part[Row]], part: str, where: str, collector: ProblemCollector) -> Iterator[Row]:
    """Yield the rows of all cuts, in order; no rows at all are a problem at `where`. Rows are counted only for a cut
    with bounds from the end or in percent."""
    is_empty = True
    for cut, count, rows in parts:
        span = cut.range_of(count() if cut.needs_count else sys.maxsize)
        for row in islice(rows(), span.start, span.stop):
            is_empty = False
            yield row
    if is_empty and not collector.errors:
        collector.add(EMPTY, where, f"{part or 'it'} has no rows")


def _count(source: Source) -> int:
    return sum(1 for _ in source.rows(ProblemCollector(str(source.path))))
