"""The KPI annotations of a gap analysis: id, video, question, answer and kind of each, and the join with results.

Media files need not exist here: results often come from a cluster without the videos.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from vidqa.core.files import ANNOTATION_NAMES, absolute
from vidqa.core.problem import ProblemError, raise_errors
from vidqa.data.archive import ARCHIVE_SEPARATOR, SUFFIXES
from vidqa.data.conversation import turns_field
from vidqa.data.foreign_rows import shaped
from vidqa.data.load import fast_row
from vidqa.data.media import MediaSource, media_source
from vidqa.data.problems import EMPTY, ProblemCollector
from vidqa.data.reader import rows_in
from vidqa.data.record import MediaRef
from vidqa.data.sources import kind_of_source, open_source
from vidqa.data.sources._base import address_of
from vidqa.data.sources.files import ANNOTATION_FILE, MEDIA_FILES
from vidqa.evaluation.results import Item, shown
from vidqa.evaluation.text import as_text, normalise
from vidqa.gaps.analysis.storage import exists, filesystem, is_remote, read_bytes, storage_problems
from vidqa.gaps.problems import GAPS_ANNOTATIONS

Span = tuple[float, float]  # seconds of the video
MOST_TAGS = 50  # of one record
# Warnings of a join (GAPS_ANNOTATIONS).
UNKNOWN = "results belong to no annotation, by id or by video and question; they are compared with their own gt"
AMBIGUOUS = "results fit several annotations, by id or by video and question; they are joined with none of them"
BY_NAME = "the videos of results are in a different folder than annotated; they are joined by file name and question"
OTHER_QUESTION = "results have the id of an annotation and another question; they are joined by id"


class Extra(NamedTuple):
    """Further fields of an annotation: tags as (dimension, value), and the time span of the event."""

    tags: tuple[tuple[str, str], ...] = ()
    span: Span | None = None


class Annotation(NamedTuple):
    """One annotation. `video` is a full path, or archive!member; `written` is the path as annotated."""

    id: str
    video: str
    written: str
    question: str
    answer: str
    kind: str


@dataclass
class AnnotationIndex:
    """The annotations in order, by id and by file name. `source` finds media on this machine."""

    media_root: str
    source: MediaSource | None = None
    rows: list[Annotation] = field(default_factory=list)
    by_id: dict[str, list[int]] = field(default_factory=dict)
    by_name: dict[str, list[int]] = field(default_factory=dict)
    extras: dict[int, Extra] = field(default_factory=dict)  # by row, if requested
    elsewhere: dict[str, str] = field(default_factory=dict)  # by file name, the video of a result without annotation

    def add(self, annotation: Annotation) -> None:
        self.by_id.setdefault(annotation.id, []).append(len(self.rows))
        self.rows.append(annotation)

    def find(self, item: Item, joined_rows: bytearray) -> tuple[int, str]:
        """The row of a result (-1 if none), and a warning or "". Matches by sample id, by an id in video_id, then by
        video and question. Rows that no field of a result distinguishes are used in order."""
        video_id, question = item["video_id"], item["question"]
        same_id = self.by_id.get(item.get("sample_id", "")) or self.by_id.get(video_id) or []
        if len(same_id) == 1 and self._asks(same_id[0], question):
            return same_id[0], ""
        rows, is_by_name = (same_id, False) if len(same_id) > 1 else self._with_video(video_id)
        exact = [row for row in rows if self.rows[row].video == video_id] or rows
        joined, remark = self._only(exact, item, joined_rows)
        if joined >= 0 and is_by_name:
            name = os.path.basename(_plain(video_id))
            if self.elsewhere.setdefault(name, video_id) != video_id:
                return -1, AMBIGUOUS
            remark = BY_NAME
        return (same_id[0], OTHER_QUESTION) if joined < 0 and len(same_id) == 1 else (joined, remark)

    def _only(self, rows: list[int], item: Item, joined_rows: bytearray) -> tuple[int, str]:
        """The row among `rows` with the result's question and, if several have it, with its ground truth."""
        agree = [row for row in rows if self._asks(row, item["question"])]
        if not agree:
            return -1, UNKNOWN
        videos = {self.rows[row].video for row in agree}
        if len(agree) > 1 and (truth := normalise(item["gt"])):
            agree = [row for row in agree if normalise(self.rows[row].answer) == truth] or agree
        texts = {(normalise(self.rows[row].question), normalise(self.rows[row].answer)) for row in agree}
        if len(videos) > 1 or len(texts) > 1:
            return -1, AMBIGUOUS
        return next((row for row in agree if not joined_rows[row]), agree[0]), ""

    def _asks(self, row: int, question: str) -> bool:
        """Whether a row's question equals that of a result, or the result has none."""
        annotated = self.rows[row].question
        return not question or annotated == question or normalise(annotated) == normalise(question)

    def _with_video(self, video_id: str) -> tuple[list[int], bool]:
        """The rows with the video `video_id` (a full path, a path as annotated, or a name with or without its suffix),
        and whether only the file's name matches, not its folder."""
        if not self.by_name:
            for row, annotation in enumerate(self.rows):
                name = os.path.basename(_plain(annotation.video))
                for key in {name, os.path.splitext(name)[0]}:
                    self.by_name.setdefault(key, []).append(row)
        video_id = _plain(video_id)
        rows = self.by_name.get(os.path.basename(video_id), []) if video_id else []
        tail = "/" + video_id.lstrip("./")
        if "/" not in tail[1:]:
            return rows, False
        same = [row for row in rows if _plain(self.rows[row].video).endswith(tail) or self._is_end_of(tail, row)]
        return same or rows, not same

    def _is_end_of(self, tail: str, row: int) -> bool:
        """Whether a path ends with a row's path below the media root, including at least one folder: this matches
        results made under another mount, or from an archive that was unpacked elsewhere."""
        below = "/" + _plain(self.rows[row].written).removeprefix(self.media_root).lstrip("./")
        return "/" in below[1:] and tail.endswith(below)

    def full_path(self, written: str) -> str:
        """The path of a medium as in an evaluation: a file, or archive!member; for missing media the path that they
        would have. Only media that may be in an archive are looked up: the path of a file is known without."""
        reference = None
        if (
            self.source
            and written
            and (self.source.archive_paths or "://" in written or ARCHIVE_SEPARATOR.search(written))
        ):
            try:
                reference = self.source.find("video", written)
            except ProblemError:  # a broken archive; this is no error, as nothing is decoded here
                self.source = None
        return reference.key if isinstance(reference, MediaRef) else full_path(written, self.media_root)


def _plain(video: str) -> str:
    """The path with an archive as a folder, for comparison of names."""
    return ARCHIVE_SEPARATOR.sub(r"\1/", video)


def is_json_file(path: str) -> bool:
    """Whether a path is a JSON file or a folder with one, local or remote, and not another source of records."""
    return is_remote(path) or (kind_of_source(path) in (ANNOTATION_FILE, MEDIA_FILES) and not address_of(path)[1])


def annotation_file(path: str) -> str:
    """The file itself, or annotations.json or .jsonl in the folder; the path of another source of records as it is.
    Raises GAPS_ANNOTATIONS, ENV_FILE_REFUSED."""
    if not is_json_file(path):
        return path
    with storage_problems(path):
        names, missing = [path], "there is no such file or folder"
        files, root = filesystem(path)
        if files.isdir(root):
            names = [f"{path.rstrip('/')}/{name}" for name in ANNOTATION_NAMES]
            missing = f"the folder contains neither {' nor '.join(ANNOTATION_NAMES)}"
        file = next((name for name in names if exists(name)), None)
    if file is None:
        raise GAPS_ANNOTATIONS.error(path, missing)
    return file


def read_annotations(path: str, media_path: str = "", *, with_extras: bool = False) -> AnnotationIndex:
    """Read annotations, optionally with tags and spans. Raises the problems of `annotation_file` and of the source."""
    findings, by_line = ProblemCollector(path), False
    if is_json_file(path):
        annotations = AnnotationIndex(_root(path, media_path), _source(path, media_path))
        with storage_problems(path):
            rows = shaped(rows_in(read_bytes(path), path, findings))
    else:
        source = open_source(path, media_path)
        annotations = AnnotationIndex(source.media.root, source.media)
        rows, by_line = source.rows(findings), source.by_line
    full_path = cache(annotations.full_path)  # many questions are about one video
    for number, (index, row) in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get(turns_field(row)), list):
            message = f"expected an object with conversations, messages or a question, got {shown(row)}"
            findings.add(GAPS_ANNOTATIONS, f"{path}[{index}]", message)
            continue
        fields = fast_row(row)
        if with_extras:
            annotations.extras[len(annotations.rows)] = Extra(tuple(_tags(row.get("tags")))[:MOST_TAGS], _span(row))
        written, kind = intern(as_text(fields.medium)), intern(as_text(fields.kind)) if fields.kind else ""
        question, answer = as_text(fields.question).strip(), as_text(fields.answer).strip()
        name = as_text(row.get("id")) or str(number if by_line else index)
        annotations.add(Annotation(name, full_path(written), written, question, answer, kind))
    errors = [problem for problem in findings.problems if problem.severity == "error" and problem.code != EMPTY.name]
    raise_errors([GAPS_ANNOTATIONS.at(problem.where, problem.message) for problem in errors])  # a list may be empty
    return annotations


def _root(path: str, media_path: str) -> str:
    root = media_path or path.rpartition("/")[0] or "."
    return root.rstrip("/") if is_remote(root) else str(absolute(root))


def _source(path: str, media_path: str) -> MediaSource | None:
    """The MediaSource of an annotation file; None if its media are not on this machine."""
    if is_remote(path) or is_remote(media_path):
        return None
    with suppress(ProblemError):
        return media_source(Path(path), media_path, root_mode=False)
    return None


def full_path(written: str, root: str) -> str:
    """Resolve the path of an annotated medium: absolute paths and URLs stay; inside an archive it is archive!member."""
    if not written or written.startswith("/") or is_remote(written):
        return written
    if root.endswith(SUFFIXES):
        return f"{root}!{written.removeprefix('./')}"
    joined = f"{root}/{written}"
    return os.path.normpath(joined) if ("/." in joined or "//" in joined) and not is_remote(root) else joined


def _tags(tags: Any) -> list[tuple[str, str]]:
    """Tags of an annotation, from a list of words, or from names with one value each."""
    if isinstance(tags, Mapping):
        plain = {name: value for name, value in tags.items() if isinstance(value, (str, int, float, bool))}
        return [(f"tag {name}", str(value)) for name, value in plain.items()]
    return [("tag", tag) for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def _span(row: Mapping[str, Any]) -> Span | None:
    """The time of the event that a question asks about, from the field `span`."""
    values = row.get("span")
    if isinstance(values, list) and len(values) == 2 and all(map(_is_time, values)) and values[0] <= values[1]:
        return float(values[0]), float(values[1])
    return None


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e7
