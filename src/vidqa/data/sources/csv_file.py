"""A CSV file (.tsv: tabs) whose header names the columns video (or file, path, clip), question and answer."""

from __future__ import annotations

import os
from pathlib import Path

from vidqa.core.files import content_hash
from vidqa.data.media import media_source
from vidqa.data.sources._base import Source, SourceKind
from vidqa.data.tables import csv_rows

ENDINGS = (".csv", ".tsv")


def _recognises(path: str) -> bool:
    return path.lower().endswith(ENDINGS) and os.path.isfile(os.path.expanduser(path))


def _open(path: str, media_path: str) -> Source:
    file = Path(os.path.expanduser(path))
    media = media_source(file, media_path, root_mode=False)
    return Source(file, media, lambda collector: csv_rows(file, collector), lambda: content_hash(file), by_line=True)


CSV_FILE = SourceKind("CSV file", _recognises, _open)
