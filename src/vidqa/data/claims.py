"""Warnings about records that state another frame rate or a later end of a video than its file has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from vidqa.core.problem import Problem
from vidqa.data.record import Record
from vidqa.video.probe import Header
from vidqa.video.problems import MEDIA_READ_DIFFERENTLY
from vidqa.video.types import VideoMeta

FPS_TOLERANCE = 0.01  # relative; people write 30 for 29.97


def disagreements(records: Iterable[Record], headers: Mapping[str, Header]) -> list[Problem]:
    """A warning for each video_fps that differs from its file's by more than 1 %, and for each video_end more than one
    frame after the file's end. `headers` are by MediaRef.file."""
    claims: defaultdict[tuple[str, str, float], dict[str, None]] = defaultdict(dict)  # records in order, once
    for record in records:
        if record.video_fps is not None and len(record.media) == 1:
            claims[record.media[0].file, "video_fps", record.video_fps][record.source] = None
        for ref in record.media:
            if (end_s := dict(ref.keys).get("video_end")) is not None:
                claims[ref.file, "video_end", end_s][record.source] = None
    problems = []
    for (file, name, value), users in claims.items():
        header = headers.get(file)
        if isinstance(header, VideoMeta) and (difference := _difference(header, name, value)):
            where, *others = users
            message = f"{name} is {value:g}, {difference}" + (f" (and {len(others)} more)" if others else "")
            remedy = f"Correct {name} in the annotations or remove it."
            problems.append(MEDIA_READ_DIFFERENTLY.at(where, message, remedy, severity="warning"))
    return problems


def _difference(meta: VideoMeta, name: str, value: float) -> str:
    """A message part about what the file has instead of a stated value; empty if they agree."""
    if name == "video_end":
        is_later = value > meta.duration_s + 1 / meta.source_fps
        return f"the video ends at {meta.duration_s:g} s, where the used part ends" if is_later else ""
    return f"the file has {meta.source_fps:g} frames per second, which are used" if fps_differs(meta, value) else ""


def fps_differs(meta: VideoMeta, fps: float | None) -> bool:
    """Whether an annotation's video_fps differs from the file's by more than 1 %."""
    return fps is not None and abs(fps - meta.source_fps) > FPS_TOLERANCE * meta.source_fps
