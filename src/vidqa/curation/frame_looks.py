"""What a clip looks like, small: up to 256 of its frames as 32 x 32 colors, and the moments that tell it from others.

Shape letters: N frames, K probes, C cells of a 16 x 16 grid, three colors each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from vidqa.contract.problem import Problem
from vidqa.contract.progress import counting
from vidqa.dataset.record import MediaRef
from vidqa.video.headers import Header, read_headers
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.types import VideoMeta

SIDE, GRID = 32, 16
MOST_FRAMES = 256
PROBES = 8
ACTIVE = 10.0  # levels of 255 that a cell differs by from what stands still
PLAIN = 3.0  # levels: a frame that varies less over its cells shows nothing
TIMEOUT_S = 120.0
AT_ONCE = 64  # clips that are decoded ahead
SMALL = "vidqa.curation.frame_looks:small"  # the transform of a decode pool


def small(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [N, 32 * 32 * 3] of uint8 [N, H, W, 3]: the mean color of every cell."""
    count, tall, wide = frames.shape[:3]
    rows, columns = (np.linspace(0, side, SIDE + 1).round().astype(int) for side in (tall, wide))
    heights, widths = np.maximum(np.diff(rows), 1), np.maximum(np.diff(columns), 1)
    summed = np.add.reduceat(frames, np.minimum(rows[:-1], tall - 1), axis=1, dtype=np.float32)
    summed = np.add.reduceat(summed, np.minimum(columns[:-1], wide - 1), axis=2)
    mean = summed / (heights[:, None] * widths)[..., None]
    return mean.round().astype(np.uint8).reshape(count, SIDE * SIDE * 3)


@dataclass(frozen=True, eq=False)
class Look:
    """`frames` uint8 [N, 32, 32, 3], in order, at `times_s` seconds."""

    frames: np.ndarray
    times_s: np.ndarray

    @cached_property
    def cells(self) -> np.ndarray:
        """float32 [N, C] without each frame's mean: a re-encoding may be a little lighter or darker."""
        return cells_of(self.frames)

    @cached_property
    def still(self) -> np.ndarray:
        """float32 [C]: what stands still, as `cells`."""
        return np.asarray(np.median(self.cells, axis=0))

    @cached_property
    def probes(self) -> np.ndarray:
        """int [K]: of each eighth of the clip the frame in which most is going on; frames that show nothing are left
        out."""
        activity = np.abs(self.cells - self.still).mean(1) + 1e-3 * self.cells.std(1)
        parts = np.array_split(np.arange(len(self.frames)), min(PROBES, len(self.frames)))
        best = np.array([part[np.argmax(activity[part])] for part in parts])
        return best[self.cells[best].std(1) >= PLAIN]

    @cached_property
    def active(self) -> np.ndarray:
        """bool [K, C]: where a probe differs from what stands still."""
        return np.asarray(np.abs(self.cells[self.probes] - self.still) > ACTIVE)


def cells_of(frames: np.ndarray) -> np.ndarray:
    """float32 [N, C] of [N, 32, 32, 3]."""
    step = SIDE // GRID
    cells = frames.astype(np.float32).reshape(len(frames), GRID, step, GRID, step, 3).mean(axis=(2, 4))
    flat = cells.reshape(len(frames), GRID * GRID * 3)
    return np.asarray(flat - flat.mean(1, keepdims=True))


def looks(media: Iterable[MediaRef]) -> Iterator[tuple[str, Look | None]]:
    """(key, look) of each medium, None of one that cannot be decoded; a few are held at a time."""
    refs = list({ref.key: ref for ref in media}.values())
    headers = read_headers(refs)
    asked = ((ref, header, _indices(header)) for ref, header in zip(refs, headers, strict=True))
    workers = min(16, len(os.sched_getaffinity(0)))
    with DecodePool(workers, TIMEOUT_S, SMALL) as pool, counting("comparing", len(refs)) as advance:
        while some := list(islice(asked, AT_ONCE)):
            answers = [
                pool.submit(DecodeRequest(ref.path, ref.member, ref.kind, indices, 0, 0)) if indices else None
                for ref, _, indices in some
            ]
            for (ref, header, indices), answer in zip(some, answers, strict=True):
                found = answer.result() if answer else None
                advance()
                if found is None or isinstance(found, Problem):
                    yield ref.key, None
                else:
                    yield ref.key, Look(found.reshape(-1, SIDE, SIDE, 3), _times(header, indices))


def _indices(header: Header) -> tuple[int, ...]:
    if isinstance(header, VideoMeta):
        count = header.frame_count
        return tuple(np.linspace(0, count - 1, min(count, MOST_FRAMES)).round().astype(int).tolist())
    return () if isinstance(header, list) else (0,)


def _times(header: Header, indices: tuple[int, ...]) -> np.ndarray:
    if not isinstance(header, VideoMeta):
        return np.zeros(1)
    if header.frame_times_s:
        return np.array(header.frame_times_s)[list(indices)]
    return np.array(indices) / header.source_fps
