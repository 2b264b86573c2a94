"""Turn the rows of a source into records, or report errors in them; and read annotations again without checks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from vidqa.core.files import ANNOTATION_NAMES
from vidqa.core.gc_pause import paused
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.data.conversation import KIND_FIELDS, KINDS, ROLES, TAG, turns_field
from vidqa.data.media import MediaSource
from vidqa.data.parse import RowReader
from vidqa.data.problems import EMPTY, MEDIA_MISSING, ProblemCollector
from vidqa.data.reader import no_annotations
from vidqa.data.record import MediaRef, Record
from vidqa.data.sources import Rows, Source, open_source

MEDIA_FIELDS = tuple(f"{kind}{ending}" for kind in KINDS for ending in ("", "s"))
NAME_FIELDS = frozenset((*MEDIA_FIELDS, "video_url", "image_url", "path", "url"))  # of rows and of parts of a turn
_KIND_FIELDS = frozenset(KIND_FIELDS)


class Pair(NamedTuple):
    """One row as the user wrote it, and its record."""

    row: dict[str, Any]
    record: Record


def pairs_of(rows: Rows, reader: RowReader) -> Iterator[Pair]:
    """Yield a pair for every valid row; errors of others go to the reader's collector. At the end media in compressed
    archives are unpacked. Raises DATA_TAR_BROKEN, ENV_DISK_SPACE."""
    collector = reader.collector
    for index, row in rows:
        record = reader.read(index, row)
        if record is not None:
            yield Pair(row, record)
    reader.source.unpack()
    if not reader.rows and not collector.errors:
        collector.add(EMPTY, collector.file, "the file contains no record")


def read_pairs(rows: Rows, reader: RowReader) -> list[Pair]:
    """Read all of `pairs_of`. An archive that cannot be unpacked is raised together with the collected errors."""
    try:
        return list(pairs_of(rows, reader))
    except ProblemError as broken:
        raise ProblemError([*reader.collector.problems, *broken.problems]) from broken


def load_pairs(
    source: Source, only: Collection[str] | None = None, *, need_answers: bool = True
) -> tuple[list[Pair], list[Problem]]:
    """Read rows and records of a source, all or those with the ids `only`, and its warnings. Media names are valid in
    an annotation file: relative to `source.media.root`. Records with missing media are kept with a warning if any
    medium is there. Raises ProblemError with all errors."""
    if need_answers:
        _require_annotated(source)
    collector = ProblemCollector(str(source.path), need_answers)
    reader = RowReader(source.path.name, source.media, collector, by_line=source.by_line, keep_missing=True)
    rows = source.rows(collector)
    pairs = read_pairs(rows if only is None else _selected(rows, reader, only), reader)
    problems = collector.problems
    if not source.media.resolved():
        problems = [replace(p, severity="error") if p.code == MEDIA_MISSING.name else p for p in problems]
    raise_errors(problems)
    if source.media.named is not None:
        pairs = [named_by_path(pair, source.media.root) for pair in pairs]
    return pairs, problems


def _selected(rows: Rows, reader: RowReader, only: Collection[str]) -> Rows:
    """The rows with these ids; others are only counted, without checks."""
    for index, row in rows:
        if isinstance(row, dict) and str(reader.id_of(index, row)) in only:
            yield index, row
        else:
            reader.rows += 1


def named_by_path(pair: Pair, root: str) -> Pair:
    """Replace media names that were matched by file name alone by names that are valid in an annotation file."""
    names = {ref.written: _name_below(ref, root) for ref in pair.record.media}
    media = tuple(replace(ref, written=names[ref.written]) for ref in pair.record.media)
    return Pair(_with_names(pair.row, names, False), replace(pair.record, media=media))


def _name_below(ref: MediaRef, root: str) -> str:
    if os.path.join(root, ref.written) in (ref.path, f"{ref.path}!{ref.member}"):
        return ref.written
    return os.path.relpath(ref.file, root) if ref.file.startswith(root + os.sep) else ref.file


def _with_names(value: Any, names: Mapping[str, str], is_name: bool) -> Any:
    """Replace media names inside part of a row."""
    if isinstance(value, dict):
        return {key: _with_names(inner, names, is_name or key in NAME_FIELDS) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_names(inner, names, is_name) for inner in value]
    return names.get(value, value) if is_name and isinstance(value, str) else value


def _require_annotated(source: Source) -> None:
    if not source.is_annotated:
        message = f"it contains media but no annotation file ({' or '.join(ANNOTATION_NAMES)})"
        raise no_annotations(source.path, message)


class Reading(TypedDict, total=False):
    """Options for reading records. Without `need_answers` (default True) a record may end with a question, `prompt` is
    the question of records without one, and the source may be media alone. With `keep_missing` records with missing
    media are kept: probing then finds these media broken, and they are handled like any other broken file."""

    need_answers: bool
    keep_missing: bool
    prompt: str


def check_records(
    annotation_path: str | Path, media_path: str | Path = "", **reading: Unpack[Reading]
) -> tuple[list[Record], list[Problem]]:
    """Every valid record of the annotations, and the problems of the others (see `load_records`)."""
    records, problems, _ = check_set(annotation_path, media_path, **reading)
    return records, problems


def check_set(
    annotation_path: str | Path, media_path: str | Path, **reading: Unpack[Reading]
) -> tuple[list[Record], list[Problem], MediaSource | None]:
    """The results of `check_records`, and the media source; None if the source cannot be opened."""
    collector = ProblemCollector(str(annotation_path), reading.get("need_answers", True))
    keep_missing, prompt = reading.get("keep_missing", False), reading.get("prompt", "")
    records: list[Record] = []
    media = None
    try:
        with paused():
            source = open_source(annotation_path, media_path)
            if collector.need_answers:
                _require_annotated(source)
            media, collector.file = source.media, str(source.path)
            reader = RowReader(
                source.path.name, media, collector, by_line=source.by_line, keep_missing=keep_missing, prompt=prompt
            )
            for pair in pairs_of(source.rows(collector), reader):
                records.append(pair.record)
    except ProblemError as stopped:
        return records, [*collector.problems, *stopped.problems], media
    return records, collector.problems, media


def load_records(annotation_path: str | Path, media_path: str | Path = "", **reading: Unpack[Reading]) -> list[Record]:
    """Read the records of a source, in its order. Raises ProblemError with all errors.

    `annotation_path` is a .json or .jsonl file, or a folder that holds annotations.json or .jsonl (root mode: media
    are named relative to that folder and must be inside it). `media_path` is a folder or a tar of media; without it
    media are named relative to the annotation file. Absolute names are used as written. Media that a folder lacks are
    searched in its videos.tar(.gz) and images.tar(.gz).
    """
    records, problems = check_records(annotation_path, media_path, **reading)
    raise_errors(problems)
    return records


class FastRow(NamedTuple):
    """The fields of a row that scoring needs: the last `question` and `answer`, the kind, and the first medium. A field
    that the annotation lacks is None or empty; its type is that of the annotation."""

    question: Any
    answer: Any
    kind: Any
    medium: Any


def fast_row(row: dict[str, Any]) -> FastRow:
    """Read a row with a list of turns, without checks: a program with answers has read the annotations
    with all checks before, and this reads a million rows in seconds."""
    question = answer = medium = None
    for turn in row.get(turns_field(row)) or ():
        if not isinstance(turn, dict):
            continue
        role = turn.get("from") or turn.get("role")
        content = turn["value"] if "value" in turn else turn.get("content")
        is_tagged = True
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, dict)]
            medium = medium or next((part[kind] for part in parts for kind in KINDS if part.get(kind)), None)
            content = "".join(str(part.get("text") or "\n") for part in parts)
            is_tagged = medium is None and bool(_first_listed(row))
        role_name = ROLES.get(role) if isinstance(role, str) else None
        if role_name == "user":
            question = TAG.sub("\n", content) if is_tagged and isinstance(content, str) and "<" in content else content
        elif role_name == "assistant":
            answer = content
    kind = None if _KIND_FIELDS.isdisjoint(row) else next(filter(None, map(row.get, KIND_FIELDS)), None)
    return FastRow(question, answer, kind, medium or _first_listed(row))


def _first_listed(row: dict[str, Any]) -> str:
    for name in MEDIA_FIELDS:
        media = row.get(name)
        if isinstance(media, list):
            media = media[0] if media else None
        if isinstance(media, str) and media:
            return media
    return ""
