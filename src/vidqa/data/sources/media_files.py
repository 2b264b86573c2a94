"""Videos and images as they are: a file, a folder or an archive of them, each of which is a record without a question.

A folder that holds an annotation file is a dataset folder instead.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from vidqa.data.archive import is_archive, open_archive
from vidqa.data.media import MediaSource
from vidqa.data.media_names import is_medium, kind_of
from vidqa.data.problem_collector import ProblemCollector
from vidqa.data.problems import FILE_MISSING
from vidqa.data.reader import NAMES
from vidqa.data.sources._base import Rows, Source, SourceKind


def media_below(folder: str) -> Iterator[str]:
    """The paths of all videos and images in a folder and its folders, but the hidden ones."""
    for above, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (os.path.join(above, name) for name in names if is_medium(name))


def _recognises(path: str) -> bool:
    place = os.path.expanduser(path)
    if os.path.isdir(place):
        return not any(os.path.isfile(os.path.join(place, name)) for name in NAMES)
    return kind_of(place) is not None or is_archive(place)


def _open(path: str, media_path: str) -> Source:
    """`media_path` is not used: the files are named by `path`."""
    place = Path(os.path.abspath(os.path.expanduser(path)))
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
            collector.add(FILE_MISSING, str(place), "no video and no image lies in it, and no annotation file")
        yield from ((at, {"id": name, str(kind_of(name)): name}) for at, name in enumerate(media_names))

    def fingerprint() -> str:
        return hashlib.sha256(json.dumps(names()).encode("utf-8", "surrogateescape")).hexdigest()

    return Source(place, media, rows, fingerprint, is_annotated=False)


MEDIA_FILES = SourceKind("media files", _recognises, _open)
