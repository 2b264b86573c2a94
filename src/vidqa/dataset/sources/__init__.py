"""Where records come from: one module for each kind of source, found by what a path is."""

from __future__ import annotations

from pathlib import Path

from vidqa.dataset.sources._base import Rows, Source, SourceKind
from vidqa.dataset.sources.annotation_file import ANNOTATION_FILE
from vidqa.dataset.sources.media_files import MEDIA_FILES

SOURCE_KINDS = (MEDIA_FILES, ANNOTATION_FILE)  # in the order in which they are tried

__all__ = ["SOURCE_KINDS", "Rows", "Source", "SourceKind", "open_source"]


def open_source(path: str | Path, media_path: str | Path = "") -> Source:
    """The source at a path. Raises DATA_FILE_MISSING."""
    kind = next(kind for kind in SOURCE_KINDS if kind.recognises(str(path)))
    return kind.open(str(path), str(media_path))
