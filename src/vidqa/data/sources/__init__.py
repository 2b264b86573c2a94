"""Sources of records: one module for each kind of source, which is selected by the path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vidqa.data.foreign_rows import shaped
from vidqa.data.problems import ProblemCollector
from vidqa.data.sources._base import (
    Names,
    Rows,
    Source,
    SourceKind,
    absolute_source,
    address_of,
    file_of,
    functions_in,
    part_of,
    read_by,
    with_absolute_functions,
)
from vidqa.data.sources.captions import CAPTIONS_FOLDER
from vidqa.data.sources.data_folder import DATA_FOLDER
from vidqa.data.sources.files import ANNOTATION_FILE, CSV_FILE, MEDIA_FILES, USER_FUNCTION
from vidqa.data.sources.web_dataset import WEB_DATASET
from vidqa.data.tables import NO_NAMES, rename_fields, report_unseen

# In the order in which they are tried; the last kind accepts every path.
SOURCE_KINDS = (USER_FUNCTION, CSV_FILE, CAPTIONS_FOLDER, WEB_DATASET, DATA_FOLDER, MEDIA_FILES, ANNOTATION_FILE)

__all__ = [
    "SOURCE_KINDS",
    "Rows",
    "Source",
    "SourceKind",
    "absolute_source",
    "file_of",
    "functions_in",
    "kind_of_source",
    "open_source",
    "read_by",
    "with_absolute_functions",
]


def kind_of_source(path: str) -> SourceKind:
    """The first kind that recognises the path."""
    return next(kind for kind in SOURCE_KINDS if kind.recognises(_address_and_split(path, kind)[0]))


def _address_and_split(path: str, kind: SourceKind) -> tuple[str, str]:
    """(path, split): the path for the kind, with ~ expanded, and the split if the kind does not handle it itself."""
    place, part = address_of(path)
    return (f"{place}#{part}", "") if part and kind.reads_part(part) else (place, part)


def open_source(
    path: str | Path, media_path: str | Path = "", kind: SourceKind | None = None, renamed: Names = NO_NAMES
) -> Source:
    """Open the source at a path, of the kind that recognises it or of `kind`, with fields `renamed`.

    Raises DATA_FILE_MISSING, DATA_SPLIT, and the kinds' errors on opening.
    """
    kind = kind or kind_of_source(str(path))
    place, part = _address_and_split(str(path), kind)
    source = part_of(kind.open(place, str(media_path), renamed), part)
    names = NO_NAMES if kind.renames else renamed

    def rows(collector: ProblemCollector) -> Rows:
        unseen = set(names.values())
        yield from shaped((at, rename_fields(row, names, unseen)) for at, row in source.rows(collector))
        report_unseen(unseen, collector, str(source.path))

    return replace(source, rows=rows)
