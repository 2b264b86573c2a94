"""Length, brightness and motion of videos, from a few small frames of each."""

from __future__ import annotations

import io
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from vidqa.contract.problem import ProblemError
from vidqa.contract.progress import counting
from vidqa.dataset.archive import archive_and_member
from vidqa.evaluation.thumbnails import spread

FRAMES = 6  # of a video, evenly spread
MOST = 2000  # videos that are looked at; of more, every n-th
AT_ONCE = 4
SIDE = 48  # pixels of the frames' width


class Look(NamedTuple):
    """`seconds` of the video; mean `brightness` and mean change between its frames (`motion`), both 0..1."""

    seconds: float
    brightness: float
    motion: float


def looks_of(videos: Iterable[str]) -> dict[str, Look]:
    """The look of each video that is on this machine and can be decoded, by its name in results."""
    here = [video for video in dict.fromkeys(videos) if _is_here(video)]
    chosen = here[:: -(-len(here) // MOST)] if here else []
    with counting("looking at videos", len(chosen)) as advance, ThreadPoolExecutor(AT_ONCE) as pool:
        found = {}
        for video, look in zip(chosen, pool.map(_look, chosen), strict=True):
            advance()
            if look is not None:
                found[video] = look
    return found


def _is_here(video: str) -> bool:
    path, _ = archive_and_member(video) or (video, None)
    return "://" not in video and Path(path).is_file()


def _look(video: str) -> Look | None:
    try:
        seconds, images = spread(video, FRAMES, SIDE)
    except ProblemError:  # broken or hanging: the evaluation has said so
        return None
    frames_THW = np.stack([np.asarray(Image.open(io.BytesIO(image)).convert("L"), np.float32) for image in images])
    motion = float(np.abs(np.diff(frames_THW, axis=0)).mean()) if len(frames_THW) > 1 else 0.0
    return Look(seconds, round(float(frames_THW.mean()) / 255, 5), round(motion / 255, 5))
