"""Length, brightness and motion of videos, from a few small frames of each."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vidqa.core.cli import counting
from vidqa.core.problem import ProblemError
from vidqa.data.archive import archive_and_member
from vidqa.evaluation.thumbnails import gray_frames

FRAMES = 6  # of a video, evenly spread
MOST = 2000  # videos that are measured; of more, every n-th
AT_ONCE = 4
SIDE = 48  # pixels of the frames' width


class VideoStats(NamedTuple):
    """`seconds` of the video; mean `brightness` and mean change between its frames (`motion`), both 0..1."""

    seconds: float
    brightness: float
    motion: float


def stats_of(videos: Iterable[str]) -> dict[str, VideoStats]:
    """The statistics of each video that is on this machine and can be decoded, by its name in results."""
    local = [video for video in dict.fromkeys(videos) if _is_local(video)]
    chosen = local[:: -(-len(local) // MOST)] if local else []
    stats = {}
    with counting("looking at videos", len(chosen)) as advance, ThreadPoolExecutor(AT_ONCE) as pool:
        for video, row in zip(chosen, pool.map(_stats, chosen), strict=True):
            advance()
            if row is not None:
                stats[video] = row
    return stats


def _is_local(video: str) -> bool:
    path, _ = archive_and_member(video) or (video, None)
    return "://" not in video and Path(path).is_file()


def _stats(video: str) -> VideoStats | None:
    try:
        seconds, frames_THW = gray_frames(video, FRAMES, SIDE)
    except ProblemError:  # broken or hanging: the evaluation has said so
        return None
    motion = float(np.abs(np.diff(frames_THW, axis=0)).mean()) if len(frames_THW) > 1 else 0.0
    return VideoStats(seconds, round(float(frames_THW.mean()) / 255, 5), round(motion / 255, 5))
