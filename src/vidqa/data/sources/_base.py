"""How a source of records is written, what an opened one is, and what a kind of source declares.

sets/nexar#train[:100]                    a split of a data set folder, or rows of one
sets/reason1#robovqa:understanding        a subset and its split
loaders/mine.py:records#train             a function of the user's, and what it is given

A source gives rows: objects with the fields of an annotation. Records are made of rows in one place (`load.py`), so
that every source has the same checks, the same problems and the same places in messages.
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
CAPTION_FILES = (".yaml", ".yml")  # what stands behind the # of a folder of captions
Row = TypeVar("Row")
Names = Mapping[str, str]  # of fields, with the names that are written
Rows = Iterator[tuple[int, Any]]  # each with its index


def address_of(written: str) -> tuple[str, str]:
    """(path, the part behind `#`, empty where all is meant). A file whose name holds `#` is that file."""
    place = os.path.expanduser(written)
    if "#" not in written or os.path.exists(place):
        return place, ""
    place, _, part = place.partition("#")
    return place, part


def file_of(written: str) -> str:
    """The file or folder that a source is: what must be there."""
    function = FUNCTION.fullmatch(written)
    if function:
        return function["file"]
    return written if os.path.exists(os.path.expanduser(written)) else written.partition("#")[0]


def read_by(written: str) -> list[str]:
    """Every file and folder that reading a source may need, its media aside: beside a user's function lies what it
    imports, in a snapshot of the hub's cache are links to the files behind it."""
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
    """What stands behind `#` for a user's function or a folder of captions, where it is a path; else empty."""
    function = FUNCTION.fullmatch(written)
    argument = (function["given"] or "") if function else address_of(written)[1]
    may_be_path = function is not None or argument.lower().endswith(CAPTION_FILES)
    return argument if may_be_path and argument and os.path.exists(os.path.expanduser(argument)) else ""


def functions_in(value: Any) -> list[str]:
    """The functions of the user's that a key of a spec names: its text, or those of a list or of a table's names."""
    return [name for name in ([value] if isinstance(value, str) else value) if FUNCTION.fullmatch(name)]


def with_absolute_functions(value: Any) -> Any:
    """The same value, whose functions are found wherever the spec is read."""
    found_anywhere = {name: made_absolute(name) for name in functions_in(value)}
    if isinstance(value, str):
        return found_anywhere.get(value, value)
    if isinstance(value, Mapping):
        return {found_anywhere.get(name, name): weight for name, weight in value.items()}
    return [found_anywhere.get(name, name) for name in value]


def made_absolute(written: str) -> str:
    """The same source wherever it is opened from, and what it is given where that is a path."""
    place, argument = file_of(written), _argument_path(written)
    rest = written[len(place) :]
    return f"{absolute(place)}{rest.removesuffix(argument)}{absolute(argument) if argument else ''}"


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
    raises the problems of paths that do not exist. Both functions get the path without a ~, and the part behind `#`
    only where `reads_part` says that the kind gives it a meaning of its own; otherwise it is a split, and `open_source`
    cuts the rows.
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
        return digest_of((source.fingerprint(), [cut[1:] for cut in cuts]))

    return replace(source, rows=rows, fingerprint=fingerprint)


def digest_of(content: object) -> str:
    """What a source's `fingerprint` gives: the sha256 (hex) of what its rows depend on."""
    return hashlib.sha256(repr(content).encode("utf-8", "surrogateescape")).hexdigest()


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
