"""A Hugging Face data set: a folder of `save_to_disk`, a snapshot of a hub dataset, or a parquet or Arrow file.

sets/nexar#train[:100]      sets/reason1#robovqa:understanding      questions.parquet
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vidqa.core.files import absolute, annotations_in_folder, content_hash
from vidqa.data.archive import is_archive
from vidqa.data.media import MediaSource, kind_of, media_source
from vidqa.data.media_cache import EmbeddedMedia
from vidqa.data.problems import LEFT_OUT, ProblemCollector
from vidqa.data.reader import read_rows
from vidqa.data.sources._base import Names, Rows, Source, SourceKind, address_of, digest_of, rows_of_cuts
from vidqa.data.splits import files_of, holds_tables, incomplete, subset_and_cuts
from vidqa.data.tables import csv_rows, has_bytes, rename_fields, report_unseen, table_length, table_rows

TABLES = (".parquet", ".arrow")


def _recognises(path: str) -> bool:
    place, part = address_of(path)
    if os.path.isfile(place):
        return place.endswith(TABLES)
    if not os.path.isdir(place) or annotations_in_folder(place):
        return False
    return bool(part) or holds_tables(Path(place))


def _open(path: str, media_path: str, renamed: Names) -> Source:
    """Open the files of each requested split, in their order. Raises DATA_SPLIT, DATA_FILE_MISSING."""
    place, part = address_of(path)
    folder = Path(place)
    subset, cuts = subset_and_cuts(part, place)
    files = [files_of(folder, subset, cut.name) for cut in cuts]
    embedded = _embedded([file for of_cut in files for file in of_cut], media_path or _home(folder), renamed)
    media = MediaSource(str(embedded.folder), in_tables=True) if embedded else _media(folder, subset, media_path)

    def rows(collector: ProblemCollector) -> Rows:
        """The rows, with their positions among all rows as indices."""
        unseen = set(renamed.values())
        for message in incomplete([file for of_cut in files for file in of_cut]) if folder.is_dir() else ():
            collector.add(LEFT_OUT, str(folder), message, severity="warning")
        parts = [
            (
                cut,
                partial(_count, of_cut, collector, renamed),
                partial(_rows_of, of_cut, collector, renamed, unseen, embedded),
            )
            for cut, of_cut in zip(cuts, files, strict=True)
        ]
        yield from enumerate(rows_of_cuts(parts, part, str(folder), collector))
        report_unseen(unseen, collector, str(folder))

    def fingerprint() -> str:
        """Digest of every file, and of the selected rows."""
        hashes = [[content_hash(file) for file in of_cut] for of_cut in files]
        return digest_of(([cut[1:] for cut in cuts], hashes))

    return Source(folder, media, rows, fingerprint)


def _home(folder: Path) -> Path:
    """The folder to which media names are relative."""
    return folder if folder.is_dir() else folder.parent


def _embedded(files: Sequence[Path], elsewhere: str | Path, renamed: Names) -> EmbeddedMedia | None:
    """The cache folder for media that tables hold as bytes; None if there are none."""
    tables = [file for file in files if file.suffix in TABLES]
    if not has_bytes(tables, renamed):
        return None
    key = hashlib.sha256("\n".join(map(content_hash, tables)).encode()).hexdigest()[:32]
    return EmbeddedMedia(key, absolute(elsewhere))


def _media(place: Path, subset: str, media_path: str) -> MediaSource:
    """The media of the set. Files in the folder are also found by the end of their paths, as sets on the hub do."""
    if media_path or place.is_file():
        return media_source(_home(place) / "of a table", media_path, root_mode=False)
    folder = Path(os.path.abspath(place / subset if subset else place))
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    named: dict[str, list[str]] = defaultdict(list)
    for path in files:
        if kind_of(path.name):
            named[path.name].append(str(path))
    archives = [path for path in files if is_archive(path)]
    return MediaSource(os.path.abspath(place), archives, own=True, named=named)


def _rows_of(
    files: Sequence[Path],
    collector: ProblemCollector,
    renamed: Names,
    unseen: set[str],
    embedded: EmbeddedMedia | None = None,
) -> Iterator[Any]:
    """Yield the rows. Fields to rename that the rows have are removed from `unseen`. Media that a table holds as bytes
    are written to `embedded` and replaced by their names. Raises ENV_DISK_SPACE."""
    for file in files:
        if file.suffix in (".csv", ".tsv"):
            unseen.clear()  # csv_rows checks the columns itself
            yield from (row for _, row in csv_rows(file, collector, renamed))
            continue
        rows = enumerate(table_rows(file, collector)) if file.suffix in TABLES else read_rows(file, collector)
        for _, written in rows:
            row = rename_fields(written, renamed, unseen)
            yield embedded.unpacked(row) if embedded else row


def _count(files: Sequence[Path], collector: ProblemCollector, renamed: Names) -> int:
    """Number of rows in the files. Errors of tables go to `collector`; other files are read to count theirs."""
    others = [file for file in files if file.suffix not in TABLES]
    in_tables = sum(table_length(file, collector) for file in files if file.suffix in TABLES)
    return in_tables + sum(1 for _ in _rows_of(others, ProblemCollector(""), renamed, set()))


DATA_FOLDER = SourceKind("data set folder", _recognises, _open, reads_part=lambda part: True, renames=True)
