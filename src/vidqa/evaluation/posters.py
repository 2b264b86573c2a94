"""A few small frames of a video or image, as JPEG, for a report."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from PIL import Image

from vidqa.dataset.archive import archive_and_member
from vidqa.evaluation.problems import POSTER_UNREADABLE

LIMIT_S = 20.0  # per file: a report never waits longer for one
LIMITS = {"max_pixels": str(8192 * 8192)}  # of one picture: none that a model was shown is larger
QUALITY = 85  # of the JPEGs
SEEK_FROM = 600  # frames further in than this are sought by time instead of decoded up to


def poster_frames(path: str, member: str | None, indices: Sequence[int], width: int = 160) -> list[bytes]:
    """JPEG of each source frame in `indices` (presentation order), `width` pixels wide, shown upright.

    `member` is the name inside the archive `path`. An index past the end gives the last frame. Raises
    POSTER_UNREADABLE where the file cannot be read or decoded within LIMIT_S.
    """
    where = path if member is None else f"{path}!{member}"
    try:
        with _media(path, member) as source, av.open(source, timeout=(LIMIT_S, LIMIT_S), options=LIMITS) as container:
            numbers = sorted({max(0, index) for index in indices})
            frames = dict(zip(numbers, _frames(container, numbers), strict=False))
            if not frames:
                raise POSTER_UNREADABLE.error(where, "no frame could be decoded")
            last = frames[max(frames)]
            return [_jpeg(frames.get(max(0, index), last), width) for index in indices]
    except (FFmpegError, OSError, tarfile.TarError, KeyError, IndexError) as wrong:
        raise POSTER_UNREADABLE.error(where, f"{type(wrong).__name__}: {wrong}") from wrong


def spread_frames(name: str, count: int) -> list[bytes]:
    """JPEG of `count` frames, evenly over a video that is named as results name it: a path, or archive.tar!member.
    Raises as `poster_frames`."""
    return spread(name, count)[1]


def spread(name: str, count: int, width: int = 160) -> tuple[float, list[bytes]]:
    """The length of a video in seconds, and `count` frames of it as `spread_frames` gives them."""
    path, member = archive_and_member(name) or (name, None)
    try:
        with _media(path, member) as source, av.open(source, timeout=(LIMIT_S, LIMIT_S), options=LIMITS) as container:
            stream = container.streams.video[0]
            seconds = (
                float((stream.duration or 0) * (stream.time_base or 0)) or (container.duration or 0) / av.time_base
            )
            frames = stream.frames or int(seconds * float(stream.average_rate or 0)) or 1
    except (FFmpegError, OSError, tarfile.TarError, KeyError, IndexError) as wrong:
        raise POSTER_UNREADABLE.error(name, f"{type(wrong).__name__}: {wrong}") from wrong
    shown = min(count, frames)
    return seconds, poster_frames(path, member, [at * frames // shown for at in range(shown)], width)


@contextmanager
def _media(path: str, member: str | None) -> Iterator[Any]:
    if member is None:
        yield path
        return
    with tarfile.open(path) as archive:
        inner = archive.extractfile(member)
        if inner is None:
            raise KeyError(f"{member} is not a file in the archive")
        yield io.BytesIO(inner.read())


def _frames(container: Any, numbers: Sequence[int]) -> Iterator[Any]:
    """The wanted frames in order; the last decoded one ends the list where the file is shorter."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    stream.codec_context.options = dict(LIMITS)
    deadline = time.monotonic() + LIMIT_S
    frame, at, left = None, -1, list(numbers)
    for frame in container.decode(stream):
        at += 1
        if left and at == left[0]:
            left.pop(0)
            yield frame
        if not left or (left[0] - at > SEEK_FROM and stream.average_rate):
            break
        if time.monotonic() > deadline:
            raise OSError(f"decoding took longer than {LIMIT_S:g} s")
    if left and frame is not None and left[0] - at <= SEEK_FROM:
        yield frame  # the file ended early
        return
    for index in left:
        yield _sought(container, stream, Fraction(index) / stream.average_rate, deadline) or frame


def _sought(container: Any, stream: Any, seconds: Fraction, deadline: float) -> Any:
    """The first frame at or after `seconds` from the stream's start, or the last one before."""
    target = int(seconds / stream.time_base) + (stream.start_time or 0)
    container.seek(target, stream=stream)
    frame = None
    for frame in container.decode(stream):
        if frame.pts is not None and frame.pts >= target:
            break
        if time.monotonic() > deadline:
            raise OSError(f"decoding took longer than {LIMIT_S:g} s")
    return frame


def _jpeg(frame: Any, width: int) -> bytes:
    """One frame, scaled by its shown size and turned upright, as JPEG."""
    turns = round(getattr(frame, "rotation", 0) / 90) % 4
    across, down = (frame.height, frame.width) if turns % 2 else (frame.width, frame.height)
    height = max(2, round(width * down / across / 2) * 2)
    stored = (height, width) if turns % 2 else (width, height)
    pixels = frame.to_ndarray(format="rgb24", width=stored[0], height=stored[1])
    written = io.BytesIO()
    Image.fromarray(np.rot90(pixels, turns)).save(written, "JPEG", quality=QUALITY)
    return written.getvalue()
