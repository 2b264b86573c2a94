"""What gap analysis needs of the KPI annotations: id, video, question, answer and kind of each, in little memory.

Media files need not exist here: results often come home from a cluster without the videos.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern

from vidqa.contract.problem import Code, ProblemError
from vidqa.dataset.archive import SEAM, SUFFIXES
from vidqa.dataset.fast_reader import FastRow, fast_row, is_annotation
from vidqa.dataset.media import MediaSource, media_source
from vidqa.dataset.problem_collector import ProblemCollector
from vidqa.dataset.problems import EMPTY
from vidqa.dataset.reader import NAMES, rows_in
from vidqa.dataset.record import MediaRef
from vidqa.evaluation.gaps.judged import Extra, extra_of
from vidqa.evaluation.gaps.problems import (
    GAPS_ANNOTATIONS,
    GAPS_ANNOTATIONS_MISSING,
    GAPS_JOINED_BY_NAME,
    GAPS_OTHER_QUESTION,
    GAPS_RESULT_AMBIGUOUS,
    GAPS_RESULT_UNKNOWN,
)
from vidqa.evaluation.gaps.storage import exists, is_folder, is_remote, read_bytes, storage_problems
from vidqa.evaluation.results import Item, shown
from vidqa.evaluation.text import as_text, normalise


@dataclass
class AnnotationColumns:
    """One entry per annotation: `videos` are full paths, `written` the same as annotated. `by_id` gives the row of an
    id, or the rows where an id is repeated. `source` finds media that are on this machine."""

    media_root: str
    source: MediaSource | None = None
    ids: list[str] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    by_id: dict[str, int | list[int]] = field(default_factory=dict)
    by_name: dict[str, list[int]] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)  # by file name, the video that a result of its own names

    def find(self, item: Item, seen: bytearray) -> tuple[int, Code | None]:
        """(the row that a result belongs to or -1, what is to be said of it): by sample id, by an id in video_id, by
        video and question. Rows that differ in nothing that a result could name are taken in their order."""
        video_id, question = item["video_id"], item["question"]
        row = self.by_id.get(item.get("sample_id", ""))
        if row is None:
            row = self.by_id.get(video_id)
        if isinstance(row, int) and self._asks(row, question):
            return row, None
        other = row if isinstance(row, int) else None
        rows, is_by_name = (row, False) if isinstance(row, list) else self._with_video(video_id)
        exact = [r for r in rows if self.videos[r] == video_id] or rows
        joined, remark = self._only(exact, item, seen)
        if joined >= 0 and is_by_name:
            name = os.path.basename(_plain(video_id))
            if self.elsewhere.setdefault(name, video_id) != video_id:
                return -1, GAPS_RESULT_AMBIGUOUS
            remark = GAPS_JOINED_BY_NAME
        return (other, GAPS_OTHER_QUESTION) if joined < 0 and other is not None else (joined, remark)

    def _only(self, rows: list[int], item: Item, seen: bytearray) -> tuple[int, Code | None]:
        """The one of some rows that has the result's question, and, of questions twice about one video, its truth."""
        agree = [r for r in rows if self._asks(r, item["question"])]
        if not agree:
            return -1, GAPS_RESULT_UNKNOWN
        is_one_video = len({self.videos[r] for r in agree}) == 1
        if len(agree) > 1 and (truth := normalise(item["gt"])):
            agree = [r for r in agree if normalise(self.answers[r]) == truth] or agree
        if not is_one_video or len({(normalise(self.questions[r]), normalise(self.answers[r])) for r in agree}) > 1:
            return -1, GAPS_RESULT_AMBIGUOUS
        return next((r for r in agree if not seen[r]), agree[0]), None

    def _asks(self, row: int, question: str) -> bool:
        """Whether a row's question is that of a result, or the result has none."""
        annotated = self.questions[row]
        return not question or annotated == question or normalise(annotated) == normalise(question)

    def _with_video(self, video_id: str) -> tuple[list[int], bool]:
        """(rows whose video is `video_id`: a full path, a path as written, or a name with or without its ending;
        whether only the file's name agrees, and not the folder in which it lies)."""
        if not self.by_name:
            for row, video in enumerate(self.videos):
                name = os.path.basename(_plain(video))
                for key in {name, os.path.splitext(name)[0]}:
                    self.by_name.setdefault(key, []).append(row)
        video_id = _plain(video_id)
        rows = self.by_name.get(os.path.basename(video_id), []) if video_id else []
        tail = "/" + video_id.lstrip("./")
        if "/" not in tail[1:]:
            return rows, False
        same = [r for r in rows if _plain(self.videos[r]).endswith(tail) or self._is_end_of(tail, r)]
        return same or rows, not same

    def _is_end_of(self, tail: str, row: int) -> bool:
        """Whether a path ends like a row's video below the root, with a folder at least."""
        below = self._below_root(row)
        return "/" in below[1:] and tail.endswith(below)

    def _below_root(self, row: int) -> str:
        """A video as annotated, below the root: results made under another mount, or from an archive that was unpacked
        elsewhere, still find it."""
        return "/" + _plain(self.written[row]).removeprefix(self.media_root).lstrip("./")

    def full_path(self, written: str) -> str:
        """A medium as the evaluation finds it: a file, or archive!member. Of media that are not on this machine, where
        they would be. Only what may lie in an archive is looked for: a file's path is known without."""
        found = None
        if self.source and written and (self.source.archive_paths or "://" in written or SEAM.search(written)):
            try:
                found = self.source.find("video", written)
            except ProblemError:  # a broken archive, which need not be whole: nothing is decoded here
                self.source = None
        return found.key if isinstance(found, MediaRef) else full_path(written, self.media_root)

    def add(self, name: str, video: str, written: str, fields: FastRow) -> None:
        row = len(self.ids)
        question, answer = as_text(fields.question), as_text(fields.answer)
        self.ids.append(name)
        self.videos.append(video)
        self.written.append(intern(written))
        self.questions.append(question.strip())
        self.answers.append(answer.strip())
        self.kinds.append(intern(as_text(fields.kind)) if fields.kind else "")
        other = self.by_id.setdefault(name, row)
        if other is not row:
            self.by_id[name] = [*other, row] if isinstance(other, list) else [other, row]


def _plain(video: str) -> str:
    """The path with an archive taken for a folder, so that names compare."""
    return SEAM.sub(r"\1/", video)


def annotation_file(path: str) -> str:
    """The file itself, or annotations.json or .jsonl in the folder. Raises GAPS_ANNOTATIONS_MISSING, GAPS_STORAGE."""
    with storage_problems(path):
        names, missing = [path], "there is no such file or folder"
        if is_folder(path):
            names = [f"{path.rstrip('/')}/{name}" for name in NAMES]
            missing = f"the folder holds neither {' nor '.join(NAMES)}"
        found = next((name for name in names if exists(name)), None)
    if found is None:
        raise GAPS_ANNOTATIONS_MISSING.error(path, missing)
    return found


def read_annotations(path: str, media_path: str = "", extras: dict[int, Extra] | None = None) -> AnnotationColumns:
    """Read a file of annotations; `extras` gets their tags and spans, by row. Raises GAPS_ANNOTATIONS, GAPS_STORAGE."""
    findings = ProblemCollector(path)
    found = AnnotationColumns(_root(path, media_path), _source(path, media_path))
    paths: dict[str, str] = {}  # as written -> in full: many questions are about one video
    with storage_problems(path):
        data = read_bytes(path)
    for index, row in rows_in(data, path, findings):
        if not is_annotation(row):
            message = f"expected an object with a list of conversations or messages, got {shown(row)}"
            findings.add(GAPS_ANNOTATIONS, f"{path}[{index}]", message)
            continue
        fields = fast_row(row)
        if extras is not None:
            extras[len(found.ids)] = extra_of(row)
        written = as_text(fields.medium)
        if (video := paths.get(written)) is None:
            video = paths[written] = found.full_path(written)
        found.add(as_text(row.get("id")) or str(index), video, written, fields)
    wrong = [each for each in findings.problems if each.code != EMPTY.name or not data.strip()]  # a list may be empty
    if wrong:
        raise ProblemError([GAPS_ANNOTATIONS.at(each.where, each.message) for each in wrong])
    return found


def _root(path: str, media_path: str) -> str:
    root = media_path or path.rpartition("/")[0] or "."
    return root.rstrip("/") if is_remote(root) else os.path.abspath(os.path.expanduser(root))


def _source(path: str, media_path: str) -> MediaSource | None:
    """What finds the media of an annotation file; None where they are not on this machine."""
    if is_remote(path) or is_remote(media_path):
        return None
    try:
        return media_source(Path(path), media_path, root_mode=False)
    except ProblemError:
        return None


def full_path(written: str, root: str) -> str:
    """A medium as annotated, resolved: absolute paths and addresses stay; inside an archive it is archive!member."""
    if not written or written.startswith("/") or is_remote(written):
        return written
    if root.endswith(SUFFIXES):
        return f"{root}!{written.removeprefix('./')}"
    joined = f"{root}/{written}"
    return os.path.normpath(joined) if ("/." in joined or "//" in joined) and not is_remote(root) else joined
