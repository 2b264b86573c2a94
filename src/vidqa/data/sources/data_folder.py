"""A data set of Hugging Face's: a folder of `save_to_disk`, a snapshot of a hub dataset, or a parquet or Arrow file.

sets/nexar#train[:100]      sets/reason1#robovqa:understanding      questions.parquet
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from vidqa.core.files import content_hash
from vidqa.data.archive import is_archive
from vidqa.data.data_files import files_of, holds_tables
from vidqa.data.embedded_media import EmbeddedMedia
from vidqa.data.foreign_rows import question_row
from vidqa.data.media import MediaSource, media_source
from vidqa.data.media_names import kind_of
from vidqa.data.problem_collector import ProblemCollector
from vidqa.data.problems import EMPTY
from vidqa.data.reader import NAMES, read_rows
from vidqa.data.sources._base import Names, Rows, Source, SourceKind
from vidqa.data.sources.address import address_of
from vidqa.data.split_syntax import cut_rows, subset_and_cuts
from vidqa.data.tables import NO_NAMES, csv_rows, has_bytes, rename_fields, rows_in_tables, table_rows

TABLES = (".parquet", ".arrow")


class DataFolder:
    """One set of records in a folder or a table: the files of each split that is asked for, in their order."""

    def __init__(self, path: Path, part: str, media_path: str = "", renamed: Names = NO_NAMES) -> None:
        self.path, self.part, self.media_path, self.renamed = path, part, media_path, renamed
        self.subset, self.cuts = subset_and_cuts(part, str(path))

    @cached_property
    def files(self) -> list[list[Path]]:
        """For each cut, its files. Raises DATA_SPLIT."""
        return [files_of(self.path, self.subset, cut.name) for cut in self.cuts]

    @cached_property
    def embedded(self) -> EmbeddedMedia | None:
        """Where media go that stand in the tables as bytes; None where none does."""
        tables = [file for files in self.files for file in files if file.suffix in TABLES]
        if not has_bytes(tables):
            return None
        keys = hashlib.sha256("\n".join(map(content_hash, tables)).encode()).hexdigest()[:32]
        return EmbeddedMedia(keys, Path(os.path.abspath(os.path.expanduser(self.media_path or self.home))))

    @property
    def home(self) -> Path:
        """The folder that media are named relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def media(self) -> MediaSource:
        """Media among the folder's own are also found by the end of their paths, as the sets on the hub name them."""
        if self.embedded:
            return MediaSource(str(self.embedded.folder))
        if self.media_path or self.path.is_file():
            return media_source(self.home / "of a table", self.media_path, root_mode=False)
        folder = Path(os.path.abspath(self.path / self.subset if self.subset else self.path))
        files = sorted(place for place in folder.rglob("*") if place.is_file()) if folder.is_dir() else []
        named: dict[str, list[str]] = defaultdict(list)
        for place in files:
            if kind_of(place.name):
                named[place.name].append(str(place))
        return MediaSource(
            os.path.abspath(self.path), [place for place in files if is_archive(place)], own=True, named=named
        )

    def rows(self, collector: ProblemCollector) -> Rows:
        """The rows of all cuts. Each has its place among them for an index."""
        index = 0
        for cut, files in zip(self.cuts, self.files, strict=True):
            count, rows = partial(self._count, files), partial(self._rows_of, files, collector)
            for row in cut_rows(cut, count, rows):
                yield index, row
                index += 1
        if not index and not collector.errors:
            collector.add(EMPTY, str(self.path), f"no row of {self.part or 'it'} is there")

    def _rows_of(self, files: Sequence[Path], collector: ProblemCollector) -> Iterator[Any]:
        for file in files:
            if file.suffix in TABLES:
                yield from (row for _, row in table_rows([file], collector, self.renamed, self.embedded))
            elif file.suffix == ".csv":
                yield from (row for _, row in csv_rows(file, collector, self.renamed))
            else:
                yield from (question_row(rename_fields(row, self.renamed)) for _, row in read_rows(file, collector))

    def _count(self, files: Sequence[Path]) -> int:
        tables = [file for file in files if file.suffix in TABLES]
        unread = ProblemCollector(str(self.path))
        return rows_in_tables(tables) + sum(
            1 for _ in self._rows_of([file for file in files if file.suffix not in TABLES], unread)
        )

    def fingerprint(self) -> str:
        """Of every file that is read, and of the part that is taken."""
        hashes = [[content_hash(file) for file in files] for files in self.files]
        return hashlib.sha256(repr(([cut[1:] for cut in self.cuts], hashes)).encode()).hexdigest()


def _recognises(path: str) -> bool:
    place, part = address_of(path)
    if os.path.isfile(place):
        return place.endswith(TABLES)
    if not os.path.isdir(place) or any(os.path.isfile(os.path.join(place, name)) for name in NAMES):
        return False
    return bool(part) or holds_tables(Path(place))


def _open(path: str, media_path: str, renamed: Names) -> Source:
    """Raises DATA_SPLIT, DATA_FILE_MISSING."""
    place, part = address_of(path)
    data_folder = DataFolder(Path(place), part, media_path, renamed)
    return Source(data_folder.path, data_folder.media, data_folder.rows, data_folder.fingerprint)


DATA_FOLDER = SourceKind("data set folder", _recognises, _open, reads_part=lambda part: True, renames=True)
