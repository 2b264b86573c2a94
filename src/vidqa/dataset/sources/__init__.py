"""Where records come from: one module for each kind of source, found by what a path is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vidqa.dataset.shapes import shaped
from vidqa.dataset.sources._base import Rows, Source, SourceKind
from vidqa.dataset.sources.address import file_of, made_absolute, read_by
from vidqa.dataset.sources.annotation_file import ANNOTATION_FILE
from vidqa.dataset.sources.captions import CAPTIONS_FOLDER
from vidqa.dataset.sources.csv_file import CSV_FILE
from vidqa.dataset.sources.data_folder import DATA_FOLDER
from vidqa.dataset.sources.media_files import MEDIA_FILES
from vidqa.dataset.sources.user_function import USER_FUNCTION
from vidqa.dataset.sources.web_dataset import WEB_DATASET

# In the order in which they are tried.
SOURCE_KINDS = (
    *(USER_FUNCTION, CSV_FILE, CAPTIONS_FOLDER, WEB_DATASET, DATA_FOLDER),
    *(MEDIA_FILES, ANNOTATION_FILE),
)

__all__ = ["SOURCE_KINDS", "Rows", "Source", "SourceKind", "file_of", "made_absolute", "open_source", "read_by"]


def open_source(path: str | Path, media_path: str | Path = "") -> Source:
    """The source at a path. Raises DATA_FILE_MISSING, and what the kinds raise on opening."""
    kind = next(kind for kind in SOURCE_KINDS if kind.recognises(str(path)))
    found = kind.open(str(path), str(media_path))
    return replace(found, rows=lambda findings: shaped(found.rows(findings)))
