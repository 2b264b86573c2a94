"""The headers of many videos and images, several at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from vidqa.contract.problem import Problem, ProblemError
from vidqa.video.image import probe_image
from vidqa.video.probe import probe
from vidqa.video.types import ImageMeta, VideoMeta

THREADS = 8  # a probe waits for the disk; FFmpeg lets go of the interpreter meanwhile
Header = VideoMeta | ImageMeta | list[Problem]


class MediaFile(Protocol):
    """Whatever names a file: a record's medium, a request for frames."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def member(self) -> str | None: ...


def read_headers(media: Iterable[MediaFile]) -> list[Header]:
    """What the probe of each medium found, in their order: what it is, or what is wrong with it. A file of which
    several media are parts is read once."""
    media = list(media)
    files = {(each.kind, each.path, each.member): each for each in media}
    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(zip(files, pool.map(_header, files.values()), strict=True))
    return [found[each.kind, each.path, each.member] for each in media]


def _header(medium: MediaFile) -> Header:
    find = probe_image if medium.kind == "image" else probe
    try:
        return find(medium.path, medium.member)
    except ProblemError as broken:
        return broken.problems
