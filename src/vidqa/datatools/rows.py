"""Rows as the user wrote them, side by side with the records they become."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.contract.problem import Problem, ProblemError, raise_errors
from vidqa.dataset.findings import Findings
from vidqa.dataset.media import MediaSource, media_source
from vidqa.dataset.parse import RowReader
from vidqa.dataset.problems import EMPTY
from vidqa.dataset.reader import annotation_file, read_rows
from vidqa.dataset.record import Record


@dataclass(frozen=True, slots=True)
class Pair:
    """One row and its record."""

    row: dict[str, Any]
    record: Record


@dataclass(frozen=True)
class Annotated:
    """An annotation file that has no error: its rows with their records, where its media are, and its warnings."""

    path: Path
    source: MediaSource
    pairs: list[Pair]
    warnings: list[Problem]

    @property
    def media_path(self) -> str:
        """What to give as media path with a file that holds the same rows elsewhere: a folder or an archive."""
        return place_of(self.source)


def place_of(source: MediaSource) -> str:
    """The folder or archive that names are relative to."""
    return source.folder or str(source.archive_paths[0])


def read_annotated(annotation_path: str | Path, media_path: str | Path = "") -> Annotated:
    """The rows and records of a file, or of a dataset folder. Raises ProblemError with everything that is wrong."""
    path = annotation_file(annotation_path)
    root_mode = not media_path and path != Path(os.path.expanduser(annotation_path))
    source = media_source(path, str(media_path), root_mode=root_mode)
    findings = Findings(str(path))
    pairs = read_pairs(read_rows(path, findings), path.name, source, findings)
    raise_errors(findings.problems)
    return Annotated(Path(os.path.abspath(path)), source, pairs, findings.problems)


def read_pairs(
    rows: Iterable[tuple[int, Any]],
    name: str,
    source: MediaSource,
    findings: Findings,
    ids: dict[str, int] | None = None,
    *,
    by_line: bool = False,
) -> list[Pair]:
    """A pair for every good row; what is wrong with the others goes to `findings`. `ids` are those already taken;
    with `by_line` rows come with the lines on which they begin."""
    reader = RowReader(name, source, findings, need_answers=True, by_line=by_line)
    if ids is not None:
        reader.ids = ids
    try:
        pairs = [Pair(row, record) for index, row in rows if (record := reader.read(index, row)) is not None]
        source.unpack()
    except ProblemError as broken:  # an archive that cannot be unpacked
        raise ProblemError([*findings.problems, *broken.problems]) from broken
    if not pairs and not findings.total:
        findings.add(EMPTY, findings.file, "the file holds no record")
    return pairs
