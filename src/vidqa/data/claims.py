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


def fps_differs(meta: VideoMeta, fps: float | None) -> bool:
    """Whether an annotation's video_fps differs from the file's by more than 1 %."""
    return fps is not None and abs(fps - meta.source_fps) > FPS_TOLERANCE * meta.source_fps


def disagreements(records: Iterable[Record], headers: Mapping[str, Header]) -> list[Problem]:
    """A warning for each video_fps that differs from its file's by more than 1 %, and for each video_end more than one
    frame after the file's end. `headers` are by MediaRef.file."""
    users: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)  # records in order, once
    for record in records:
        for ref in record.media:
            meta, end_s = headers.get(ref.file), dict(ref.keys).get("video_end")
            if not isinstance(meta, VideoMeta):
                continue
            if len(record.media) == 1 and fps_differs(meta, record.video_fps):
                rate = f"the file has {meta.source_fps:g} frames per second, which are used"
                users["video_fps", f"{record.video_fps:g}, {rate} ({ref.written})"][record.source] = None
            if end_s is not None and end_s > meta.duration_s + 1 / meta.source_fps:
                end = f"the video ends at {meta.duration_s:g} s, where the used part ends"
                users["video_end", f"{end_s:g}, {end} ({ref.written})"][record.source] = None
    problems = []
    for (name, difference), (first, *others) in users.items():
        message = f"{name} is {difference}" + (f"; and in {len(others)} more records" if others else "")
        remedy = f"Correct {name} in the annotations or remove it."
        problems.append(MEDIA_READ_DIFFERENTLY.at(first, message, remedy, severity="warning"))
    return problems
