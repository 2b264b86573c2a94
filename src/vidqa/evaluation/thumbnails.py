"""Small frames of a video or image, as JPEG, for a report."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vidqa.core.pages.page import card_images
from vidqa.core.problem import ProblemError
from vidqa.data.archive import archive_and_member, locate
from vidqa.video.decode import read_frames
from vidqa.video.image import decode_image
from vidqa.video.probe import probe
from vidqa.video.problems import MEDIA_UNREADABLE
from vidqa.video.source import place

LIMIT_S = 20.0  # time limit per file
QUALITY = 85  # of the JPEGs
WIDTH = 160


def poster_frames(path: str, member: str | None, indices: Sequence[int], width: int = WIDTH) -> list[bytes]:
    """JPEG of each source frame in `indices` (presentation order), `width` pixels wide, in upright orientation.

    `member` is the name inside the archive `path`. An index past the end gives the last frame. Raises MEDIA_UNREADABLE
    if the file cannot be read or decoded within LIMIT_S.
    """
    frames = _frames(path, member, lambda count: [min(max(0, index), count - 1) for index in indices], width)[1]
    return list(map(_jpeg, frames))


def card_frames(video: str, count: int) -> dict[str, Any]:
    """{"frames": data URLs of `count` frames spread evenly over a video (a name as in results), "fault": ""}; if it
    cannot be decoded, no frames and the reason. Both are empty for the name ""."""
    if not video:
        return {"frames": [], "fault": ""}
    return card_images(lambda: list(map(_jpeg, _spread(video, count, WIDTH)[1])))


def gray_frames(video: str, count: int, width: int) -> tuple[float, np.ndarray]:
    """The length of a video in seconds, and `count` gray frames spread evenly over it, float32 [T, H, W]. Raises
    MEDIA_UNREADABLE."""
    seconds, images = _spread(video, count, width)
    return seconds, np.stack([np.asarray(image.convert("L"), np.float32) for image in images])


def _spread(video: str, count: int, width: int) -> tuple[float, list[Image.Image]]:
    path, member = archive_and_member(video) or (video, None)

    def middles(frames: int) -> list[int]:  # centers of equal parts: the first frame of a file is often black
        parts = min(count, frames)
        return [(2 * part + 1) * frames // (2 * parts) for part in range(parts)]

    return _frames(path, member, middles, width)


def _frames(
    path: str, member: str | None, choose: Callable[[int], list[int]], width: int
) -> tuple[float, list[Image.Image]]:
    """The length in seconds, and the small frames with the indices that `choose` returns for the number of frames."""
    try:
        file, inner = locate(path, member)
        try:
            meta = probe(file, inner)
        except ProblemError as no_video:
            return 0.0, [_resized(_image(file, inner, no_video), width)] * len(choose(1))
        numbers = choose(meta.frame_count)
        decoded = read_frames(file, inner, sorted(set(numbers)), deadline=time.monotonic() + LIMIT_S)
        images = {number: _resized(pixels, width) for number, pixels in zip(sorted(set(numbers)), decoded, strict=True)}
        return meta.duration_s, [images[number] for number in numbers]
    except ProblemError as error:
        remedy = "check that the file is still at its path and plays"
        raise MEDIA_UNREADABLE.error(place(path, member), error.problems[0].message, remedy) from error


def _image(path: str, member: str | None, no_video: ProblemError) -> np.ndarray:
    try:
        return decode_image(path, member)[0]
    except ProblemError:
        raise no_video from None


def _resized(pixels: np.ndarray, width: int) -> Image.Image:
    """An image, `width` pixels wide, of uint8 [H, W, 3]."""
    height = max(2, round(width * pixels.shape[0] / pixels.shape[1] / 2) * 2)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
