"""Loads the annotations of a data set: a file or a folder in, records or problems out."""

from __future__ import annotations

import os
from pathlib import Path

from vidqa.contract.collection import paused
from vidqa.contract.problem import Problem, ProblemError, raise_errors
from vidqa.dataset.findings import Findings
from vidqa.dataset.media import MediaSource, media_source
from vidqa.dataset.parse import RowReader
from vidqa.dataset.problems import EMPTY
from vidqa.dataset.reader import annotation_file, read_rows
from vidqa.dataset.record import Record


def check_records(
    annotation_path: str | Path,
    media_path: str | Path = "",
    *,
    need_answers: bool = True,
    keep_missing: bool = False,
) -> tuple[list[Record], list[Problem]]:
    """Every good record of the annotations, and what is wrong with the others (see `load_records`)."""
    records, problems, _ = check_set(annotation_path, media_path, need_answers=need_answers, keep_missing=keep_missing)
    return records, problems


def check_set(
    annotation_path: str | Path, media_path: str | Path, *, need_answers: bool = True, keep_missing: bool = False
) -> tuple[list[Record], list[Problem], MediaSource | None]:
    """What `check_records` gives, and where the media are; None where there is no such place."""
    with paused():
        return _check(annotation_path, media_path, need_answers, keep_missing)


def _check(
    annotation_path: str | Path, media_path: str | Path, need_answers: bool, keep_missing: bool
) -> tuple[list[Record], list[Problem], MediaSource | None]:
    findings = Findings(str(annotation_path))
    records: list[Record] = []
    source = None
    try:
        path = annotation_file(annotation_path)
        findings.file = str(path)
        root_mode = not media_path and path != Path(os.path.expanduser(annotation_path))
        source = media_source(path, str(media_path), root_mode=root_mode)
        reader = RowReader(path.name, source, findings, need_answers, keep_missing=keep_missing)
        for index, row in read_rows(path, findings):
            record = reader.read(index, row)
            if record is not None:
                records.append(record)
        source.unpack()
    except ProblemError as stopped:
        return records, [*findings.problems, *stopped.problems], source
    if not records and not findings.total:
        findings.add(EMPTY, findings.file, "the file holds no record")
    return records, findings.problems, source


def load_records(
    annotation_path: str | Path,
    media_path: str | Path = "",
    *,
    need_answers: bool = True,
    keep_missing: bool = False,
) -> list[Record]:
    """The records of an annotation file, in its order. Raises ProblemError with everything that is wrong.

    `annotation_path` is a .json or .jsonl file, or a folder that holds annotations.json or .jsonl (root mode: media
    are named relative to that folder and must lie in it). `media_path` is a folder or a tar of media; without it media
    are named relative to the annotation file. Absolute names are kept as written. A folder's own videos.tar(.gz) and
    images.tar(.gz) are searched for what the folder itself lacks. Without `need_answers` a record may end with a
    question. With `keep_missing` records whose media are not there are kept; where the media are probed they turn out
    to be broken, and are dealt with like any other broken file.
    """
    records, problems = check_records(annotation_path, media_path, need_answers=need_answers, keep_missing=keep_missing)
    raise_errors(problems)
    return records
