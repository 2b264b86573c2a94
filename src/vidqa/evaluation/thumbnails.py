"""A few small frames of a video or image, as JPEG, for a report."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from vidqa.contract.problem import ProblemError
from vidqa.dataset.archive import archive_and_member, locate
from vidqa.evaluation.problems import POSTER_UNREADABLE
from vidqa.video.decode import read_frames
from vidqa.video.image import decode_image
from vidqa.video.probe import probe
from vidqa.video.source import place

LIMIT_S = 20.0  # per file: a report never waits longer for one
QUALITY = 85  # of the JPEGs


def poster_frames(path: str, member: str | None, indices: Sequence[int], width: int = 160) -> list[bytes]:
    """JPEG of each source frame in `indices` (presentation order), `width` pixels wide, shown upright.

    `member` is the name inside the archive `path`. An index past the end gives the last frame. Raises
    POSTER_UNREADABLE where the file cannot be read or decoded within LIMIT_S.
    """
    return _posters(path, member, lambda count: [min(max(0, index), count - 1) for index in indices], width)[1]


def spread_frames(name: str, count: int) -> list[bytes]:
    """JPEG of `count` frames, evenly over a video that is named as results name it: a path, or archive.tar!member.
    Raises as `poster_frames`."""
    return spread(name, count)[1]


def spread(name: str, count: int, width: int = 160) -> tuple[float, list[bytes]]:
    """The length of a video in seconds, and `count` frames of it as `spread_frames` gives them."""
    path, member = archive_and_member(name) or (name, None)
    return _posters(path, member, lambda frames: _evenly(min(count, frames), frames), width)


def _evenly(count: int, frames: int) -> list[int]:
    return [at * frames // count for at in range(count)]


def _posters(
    path: str, member: str | None, choose: Callable[[int], list[int]], width: int
) -> tuple[float, list[bytes]]:
    """The length in seconds, and of so many frames those that `choose` names."""
    try:
        file, inner = locate(path, member)
        try:
            meta = probe(file, inner)
        except ProblemError as no_video:
            return 0.0, [_jpeg(_image(file, inner, no_video), width)] * len(choose(1))
        numbers = choose(meta.frame_count)
        frames = read_frames(file, inner, sorted(set(numbers)), deadline=time.monotonic() + LIMIT_S)
        jpegs = {number: _jpeg(frame, width) for number, frame in zip(sorted(set(numbers)), frames, strict=True)}
        return meta.duration_s, [jpegs[number] for number in numbers]
    except ProblemError as wrong:
        raise POSTER_UNREADABLE.error(place(path, member), wrong.problems[0].message) from wrong


def _image(path: str, member: str | None, no_video: ProblemError) -> np.ndarray:
    try:
        return decode_image(path, member)[0]
    except ProblemError:
        raise no_video from None


def _jpeg(pixels: np.ndarray, width: int) -> bytes:
    """uint8 [H, W, 3] as JPEG, `width` pixels wide."""
    height = max(2, round(width * pixels.shape[0] / pixels.shape[1] / 2) * 2)
    written = io.BytesIO()
    Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR).save(written, "JPEG", quality=QUALITY)
    return written.getvalue()
