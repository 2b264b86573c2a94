"""An annotation file: a JSON list or JSON lines, or a dataset folder that holds annotations.json or .jsonl."""

from __future__ import annotations

import os
from pathlib import Path

from vidqa.core.files import content_hash
from vidqa.data.media import media_source
from vidqa.data.reader import annotation_file, read_rows
from vidqa.data.sources._base import Source, SourceKind


def _open(annotation_path: str, media_path: str) -> Source:
    """A dataset folder without a media path is in root mode: its media must lie in it."""
    path = annotation_file(annotation_path)
    root_mode = not media_path and path != Path(os.path.expanduser(annotation_path))
    media = media_source(path, media_path, root_mode=root_mode)
    return Source(path, media, lambda collector: read_rows(path, collector), lambda: content_hash(path))


# The last kind that is tried: a path that is nothing else is meant as an annotation file, and its problems say so.
ANNOTATION_FILE = SourceKind("annotation file", lambda path: True, _open)
