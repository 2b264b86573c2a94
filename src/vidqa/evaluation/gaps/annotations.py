"""What gap analysis needs of the KPI annotations: id, video, question, answer and kind of each, in little memory.

Media files need not exist here: results often come home from a cluster without the videos.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset.archive import SEAM, SUFFIXES
from vidqa.dataset.media import MediaSource, media_source
from vidqa.dataset.record import MediaRef
from vidqa.evaluation.gaps.problems import GAPS_ANNOTATIONS, GAPS_ANNOTATIONS_MISSING
from vidqa.evaluation.gaps.storage import exists, is_folder, is_remote, opened, storage_problems
from vidqa.evaluation.json_items import json_items
from vidqa.evaluation.results import Bounded, shown
from vidqa.evaluation.text import as_text, normalise

_TAG = re.compile(r"\n?<(?:video|image)>\n?")
_ASKS, _ANSWERS = ("human", "user"), ("gpt", "assistant")
_KINDS = ("kind", "type", "question_type", "category")
_KIND_FIELDS = frozenset(_KINDS)
_MEDIA_FIELDS = ("video", "videos", "image", "images")


@dataclass
class Annotations:
    """Columns, one entry per annotation: `videos` are full paths, `written` the same as annotated. `by_id` gives the
    row of an id, or the rows where an id is repeated. `source` finds media that are on this machine."""

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

    def find(self, sample_id: str, video_id: str, question: str, seen: bytearray) -> int:
        """The row a result belongs to, or -1: by sample id, by an id in video_id, by video and question."""
        row = self.by_id.get(sample_id) if sample_id else None
        if row is None:
            row = self.by_id.get(video_id)
        if isinstance(row, int):
            return row
        rows = row or self._with_video(video_id)
        same = [r for r in rows if self.videos[r] == video_id] or rows
        asked = normalise(question)
        agree = [r for r in same if not asked or normalise(self.questions[r]) == asked]
        if row is not None:
            agree = agree or same
        return next((r for r in agree if not seen[r]), agree[0] if agree else -1)

    def _with_video(self, video_id: str) -> list[int]:
        """Rows whose video is `video_id`: a full path, a path as written, or a name with or without its ending."""
        if not self.by_name:
            for row, video in enumerate(self.videos):
                name = os.path.basename(_plain(video))
                for key in {name, os.path.splitext(name)[0]}:
                    self.by_name.setdefault(key, []).append(row)
        video_id = _plain(video_id)
        rows = self.by_name.get(os.path.basename(video_id), []) if video_id else []
        if "/" not in video_id:
            return rows
        tail = "/" + video_id.lstrip("./")
        return [r for r in rows if _plain(self.videos[r]).endswith(tail) or tail.endswith(self._below_root(r))] or rows

    def _below_root(self, row: int) -> str:
        """A video as annotated, below the root: results made under another mount, or from an archive that was unpacked
        elsewhere, still find it."""
        return "/" + _plain(self.written[row]).removeprefix(self.media_root).lstrip("./")

    def full_path(self, written: str) -> str:
        """A medium as the evaluation finds it: a file that is there, or archive!member. Of media that are not on this
        machine, where they would be."""
        found = None
        if self.source and written:
            try:
                found = self.source.find("video", written)
            except ProblemError:  # a broken archive, which need not be whole: nothing is decoded here
                self.source = None
        return found.key if isinstance(found, MediaRef) else full_path(written, self.media_root)


def _plain(video: str) -> str:
    """The path with an archive taken for a folder, so that names compare."""
    return SEAM.sub(r"\1/", video)


def annotation_file(path: str) -> str:
    """The file itself, or annotations.json or .jsonl in the folder. Raises GAPS_ANNOTATIONS_MISSING, GAPS_STORAGE."""
    with storage_problems(path):
        names, missing = [path], "there is no such file or folder"
        if is_folder(path):
            names = [f"{path.rstrip('/')}/annotations.{ending}" for ending in ("json", "jsonl")]
            missing = "the folder holds neither annotations.json nor annotations.jsonl"
        found = next((name for name in names if exists(name)), None)
    if found is None:
        raise GAPS_ANNOTATIONS_MISSING.error(path, missing)
    return found


def read_annotations(path: str, media_path: str = "") -> Annotations:
    """Read a file of annotations. Raises GAPS_ANNOTATIONS, GAPS_STORAGE."""
    problems = Bounded()
    with storage_problems(path):
        found = Annotations(_root(path, media_path), _source(path, media_path))
        paths: dict[str, str] = {}  # as written -> in full: many questions are about one video
        with opened(path) as stream:
            for index, value in json_items(stream, path, problems):
                if isinstance(value, dict) and isinstance(value.get("conversations", value.get("messages")), list):
                    _add(found, index, value, paths)
                else:
                    message = f"expected an object with a list of conversations or messages, got {shown(value)}"
                    problems.append(GAPS_ANNOTATIONS.at(f"{path}[{index}]", message))
    if problems:
        raise ProblemError(map(_ours, problems.closed()))
    return found


def _ours(problem: Problem) -> Problem:
    return GAPS_ANNOTATIONS.at(problem.where, problem.message)


def _root(path: str, media_path: str) -> str:
    root = media_path or path.rpartition("/")[0] or "."
    return root.rstrip("/") if is_remote(root) else os.path.abspath(root)


def _source(path: str, media_path: str) -> MediaSource | None:
    """What finds the media of an annotation file; None where they are not on this machine."""
    if is_remote(path) or is_remote(media_path):
        return None
    try:
        return media_source(Path(path), media_path, root_mode=False)
    except ProblemError:
        return None


def _add(found: Annotations, index: int, value: dict[str, Any], paths: dict[str, str]) -> None:
    row = len(found.ids)
    name = as_text(value.get("id")) or str(index)
    question, answer, media = _turns(value)
    written = media or _first_media(value)
    if (video := paths.get(written)) is None:
        video = paths[written] = found.full_path(written)
    found.ids.append(name)
    found.videos.append(video)
    found.written.append(intern(written))
    found.questions.append(question)
    found.answers.append(answer)
    found.kinds.append("" if _KIND_FIELDS.isdisjoint(value) else _kind(value))
    other = found.by_id.setdefault(name, row)
    if other is not row:
        found.by_id[name] = [*other, row] if isinstance(other, list) else [other, row]


def _kind(value: dict[str, Any]) -> str:
    return intern(as_text(next(filter(None, map(value.get, _KINDS)), "")))


def _first_media(value: dict[str, Any]) -> str:
    for name in _MEDIA_FIELDS:
        media = value.get(name)
        if isinstance(media, list):
            media = media[0] if media else None
        if isinstance(media, str) and media:
            return media
    return ""


def _turns(value: dict[str, Any]) -> tuple[str, str, str]:
    """(last question, last answer, medium named inside the content) of a conversation of either shape."""
    media = ""
    question: object = ""
    answer: object = ""
    for turn in value.get("conversations", value.get("messages")) or ():
        if not isinstance(turn, dict):
            continue
        role = turn.get("from") or turn.get("role")
        content = turn.get("value") if "value" in turn else turn.get("content")
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, dict)]
            media = media or next((as_text(p[k]) for p in parts for k in ("video", "image") if p.get(k)), "")
            content = "".join(as_text(part["text"]) if part.get("text") else "\n" for part in parts)
        if role in _ASKS:
            question = content
        elif role in _ANSWERS:
            answer = content
    asked = as_text(question)
    return (_TAG.sub("\n", asked) if "<" in asked else asked).strip(), as_text(answer).strip(), media


def full_path(written: str, root: str) -> str:
    """A medium as annotated, resolved: absolute paths and addresses stay; inside an archive it is archive!member."""
    if not written or written.startswith("/") or is_remote(written):
        return written
    if root.endswith(SUFFIXES):
        return f"{root}!{written.removeprefix('./')}"
    joined = f"{root}/{written}"
    return os.path.normpath(joined) if ("/." in joined or "//" in joined) and not is_remote(root) else joined
