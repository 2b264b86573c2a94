"""Sources that are plain files: annotations as JSON or CSV, media without annotations, a user's Python function.

An annotation file is a JSON list or JSON lines, or annotations.json(l) in a dataset folder. A CSV file (.tsv: tabs)
has a header with the columns video (or file, path, clip), question and answer. Media are a file, a folder or an
archive, each video and image of which is a record without a question. A Python file holds a function that yields
records, `my_module.py:records`, or `my_module.py:records#ARGUMENT`; it runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.core.files import annotations_in_folder, content_hash
from vidqa.core.user_function import UserFunction, UserFunctionError
from vidqa.data.archive import is_archive, open_archive
from vidqa.data.media import MediaSource, is_medium, kind_of, media_source
from vidqa.data.problems import EMPTY, FILE_MISSING, ProblemCollector
from vidqa.data.problems import USER_FUNCTION as FUNCTION_FAILED
from vidqa.data.reader import TOO_DEEP, annotation_file, is_deep, read_rows
from vidqa.data.sources._base import FUNCTION, Names, Rows, Source, SourceKind, digest_of
from vidqa.data.tables import csv_rows


def media_below(folder: str) -> Iterator[str]:
    """Yield the paths of all videos and images in a folder and its subfolders, except hidden ones."""
    for above, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (os.path.join(above, name) for name in names if is_medium(name))


def _is_media(path: str) -> bool:
    if os.path.isdir(path):
        return annotations_in_folder(path) is None
    return kind_of(path) is not None or is_archive(path)


def _open_media(path: str, media_path: str, renamed: Names) -> Source:
    """Open media without annotations. `media_path` is unused: names are relative to `path`."""
    place = Path(os.path.abspath(path))
    if place.is_dir():
        media = MediaSource(str(place))
    elif is_archive(place) and place.is_file():
        media = MediaSource(None, [place])
    else:
        media = MediaSource(str(place.parent))

    def names() -> list[str]:
        if place.is_dir():
            return sorted(os.path.relpath(path, place) for path in media_below(str(place)))
        if media.archive_paths:
            return sorted(name for name in open_archive(place).members if is_medium(name))
        return [place.name]

    def rows(collector: ProblemCollector) -> Rows:
        if not (media_names := names()):
            collector.add(FILE_MISSING, str(place), "it contains no video, image or annotation file")
        yield from ((at, {"id": name, str(kind_of(name)): name}) for at, name in enumerate(media_names))

    def fingerprint() -> str:
        return hashlib.sha256(json.dumps(names()).encode("utf-8", "surrogateescape")).hexdigest()

    return Source(place, media, rows, fingerprint, is_annotated=False)


MEDIA_FILES = SourceKind("media files", _is_media, _open_media)


def _open_annotations(annotation_path: str, media_path: str, renamed: Names) -> Source:
    """Open an annotation file. A dataset folder without a media path is in root mode: its media must be inside."""
    path = annotation_file(annotation_path)
    root_mode = not media_path and path != Path(annotation_path)
    media = media_source(path, media_path, root_mode=root_mode)
    return Source(path, media, lambda collector: read_rows(path, collector), lambda: content_hash(path))


# The last kind that is tried: any other path is opened as an annotation file, and errors say so.
ANNOTATION_FILE = SourceKind("annotation file", lambda path: True, _open_annotations)


def _is_csv(path: str) -> bool:
    return path.lower().endswith((".csv", ".tsv")) and os.path.isfile(path)


def _open_csv(path: str, media_path: str, renamed: Names) -> Source:
    file = Path(path)
    media = media_source(file, media_path, root_mode=False)
    return Source(file, media, lambda to: csv_rows(file, to, renamed), lambda: content_hash(file), by_line=True)


CSV_FILE = SourceKind("CSV file", _is_csv, _open_csv, renames=True)


def _open_function(path: str, media_path: str, renamed: Names) -> Source:
    """Open a user's function. Raises DATA_FILE_MISSING."""
    match = FUNCTION.fullmatch(path)
    assert match is not None  # the path was recognised
    file = Path(os.path.abspath(match["file"]))
    if not file.is_file():
        raise FILE_MISSING.error(file, "there is no such Python file", "give FILE.py:FUNCTION")
    name, argument = match["name"], match["given"]

    def rows(collector: ProblemCollector) -> Rows:
        index = -1
        for index, row in enumerate(_yielded(file, name, argument, collector)):
            if is_deep(row):
                collector.add(FUNCTION_FAILED, f"{file}:{name}[{index}]", TOO_DEEP)
            else:
                yield index, row
        if index < 0 and not collector.errors:
            collector.add(EMPTY, f"{file}:{name}", "the function yields no record")

    def fingerprint() -> str:
        read = [content_hash(Path(argument))] if argument and os.path.isfile(argument) else []
        return digest_of([content_hash(file), name, argument, *read])

    return Source(file, media_source(file, media_path, root_mode=False), rows, fingerprint)


def _yielded(file: Path, name: str, argument: str | None, collector: ProblemCollector) -> Iterator[Any]:
    """Yield the function's records until it ends or fails; a failure becomes a problem."""
    try:
        with UserFunction(file, name) as function:
            yield from function.rows([] if argument is None else [argument])
    except UserFunctionError as failed:
        collector.add(FUNCTION_FAILED, failed.where or f"{file}:{name}", failed.message)


USER_FUNCTION = SourceKind(
    "user's function", lambda path: bool(FUNCTION.fullmatch(path)), _open_function, reads_part=lambda part: True
)
