"""The headers of many videos and images, several at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from vidqa.core.problem import Problem, ProblemError
from vidqa.video.image import probe_image
from vidqa.video.probe import probe
from vidqa.video.problems import IMAGE_CLIPPED, VIDEO_BEGINS_MID_GOP, VIDEO_RATE_ASSUMED
from vidqa.video.types import ImageMeta, VideoMeta

CLIPPED_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # Pillow's, of values that 8 bits do not hold
THREADS = 8  # a probe waits for the disk; FFmpeg lets go of the interpreter meanwhile
Header = VideoMeta | ImageMeta | list[Problem]


class MediaFile(Protocol):
    """A record's medium, or a request for frames."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def member(self) -> str | None: ...


def probe_many(media: Iterable[MediaFile]) -> list[Header]:
    """The header of each medium, or its problems, in their order. A file with several media in it is read once."""
    media = list(media)
    files = {(medium.kind, medium.path, medium.member): medium for medium in media}
    with ThreadPoolExecutor(THREADS) as pool:
        headers = dict(zip(files, pool.map(_probe, files.values()), strict=True))
    return [headers[medium.kind, medium.path, medium.member] for medium in media]


def _probe(medium: MediaFile) -> Header:
    find = probe_image if medium.kind == "image" else probe
    try:
        return find(medium.path, medium.member)
    except ProblemError as broken:
        return broken.problems


def header_warnings(header: VideoMeta | ImageMeta, where: object) -> list[Problem]:
    """Warnings where a file is read differently from what its author may expect."""
    problems = []
    if isinstance(header, ImageMeta):
        if header.mode in CLIPPED_MODES:
            message = f"its pixels have Pillow's mode {header.mode}; values above 255 become white, those below 1 black"
            problems.append(IMAGE_CLIPPED.at(where, message, severity="warning"))
        return problems
    if header.frames_lost:
        message = f"its first {header.frames_lost} pictures need others that the file does not have; they are left out"
        problems.append(VIDEO_BEGINS_MID_GOP.at(where, message, severity="warning"))
    if header.rate_assumed:
        message = f"its headers state no frame rate; {header.source_fps:g} frames per second are assumed"
        problems.append(VIDEO_RATE_ASSUMED.at(where, message, severity="warning"))
    return problems
