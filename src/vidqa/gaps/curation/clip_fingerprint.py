"""The fingerprint of a clip: up to 256 of its frames as 32 x 32 colors, and the moments that tell it from others.

Shape letters: N frames, K probes, C cells of a 16 x 16 grid, three colors each, B cells of an 8 x 8 grid.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from vidqa.core.cli import counting
from vidqa.core.problem import Problem
from vidqa.data.record import MediaRef
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.probe import Header, probe_many
from vidqa.video.types import VideoMeta

FINE, SIDE, GRID, COARSE = 64, 32, 16, 8  # cells of a side: of the probes, of all frames, and what both are averaged to
EXACT = 256  # pixels of a side, below which cells begin within a pixel
MOST_FRAMES = 256
PROBES = 8
ACTIVE = 10.0  # levels of 255 that a cell differs by from what stands still
MOVING = 0.25  # share of cells in which something goes on, half of the time, up to which a camera is fixed
DETAIL = 0.3  # share of cells with something to see, from which two frames are not alike by chance
STEP = 6.0  # levels that make a difference between two cells
PLAIN = 3.0  # levels: a frame that varies less over its cells shows nothing
TIMEOUT_S = 120.0
AT_ONCE = 64  # clips that are decoded ahead
SMALL = "vidqa.gaps.curation.clip_fingerprint:small"  # the transform of a decode pool


def small(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [N, 64 * 64 * 3] of uint8 [N, H, W, 3]: the mean color of every cell."""
    count, tall, wide = frames.shape[:3]
    for axis in (1, 2) if tall > wide else (2, 1):
        frames = _narrowed(frames, axis)
    return frames.round().astype(np.uint8).reshape(count, FINE * FINE * 3)


def _narrowed(frames: np.ndarray, axis: int) -> np.ndarray:
    """float32: 64 means along an axis. Of a short side a pixel is shared by two cells; else a crop would not fit."""
    side = frames.shape[axis]
    if side < EXACT:
        weights = boxes(np.zeros(()), np.ones(()), FINE, side)
        return np.moveaxis(np.tensordot(weights, frames.astype(np.float32), axes=(1, axis)), 0, axis)
    edges = np.linspace(0, side, FINE + 1).round().astype(int)
    summed = np.add.reduceat(frames, edges[:-1], axis=axis, dtype=np.float32)
    return summed / np.diff(edges).astype(np.float32)[(slice(None), *(None,) * (3 - axis))]


def boxes(start: np.ndarray, size: np.ndarray, into: int, side: int) -> np.ndarray:
    """float32 [..., into, side]: weights that average `side` cells over each of the parts that an interval of the side
    is divided into; `start` and `size` are shares of the side."""
    edges = (start[..., None] + size[..., None] * np.linspace(0, 1, into + 1)) * side
    low, high = edges[..., :-1, None], edges[..., 1:, None]
    cell = np.arange(side)
    covered = np.clip(np.minimum(high, cell + 1) - np.maximum(low, cell), 0, None)
    return np.asarray(covered / np.maximum(covered.sum(-1, keepdims=True), 1e-9), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class ClipFingerprint:
    """`frames` uint8 [N, 32, 32, 3], in order, at `times_s` seconds. `probes` int [K] names the frames that tell most,
    which `fine` uint8 [K, 64, 64, 3] shows again. `aspect` is the picture's width by its height."""

    frames: np.ndarray
    times_s: np.ndarray
    probes: np.ndarray
    fine: np.ndarray
    aspect: float
    crops: dict[Any, Any] = field(default_factory=dict)  # cache of `crop_alignment`

    @classmethod
    def from_frames(cls, fine: np.ndarray, times_s: np.ndarray, aspect: float) -> ClipFingerprint:
        """Of uint8 [N, 64, 64, 3]."""
        frames = pooled(fine, SIDE).round().astype(np.uint8)
        cells = cells_of(frames)
        probes = _probes(cells, np.asarray(np.median(cells, axis=0)))
        return cls(frames, times_s, probes, fine[probes], aspect)

    @cached_property
    def cells(self) -> np.ndarray:
        """float32 [N, C] without each frame's mean: a re-encoding may be a little lighter or darker."""
        return cells_of(self.frames)

    @cached_property
    def coarse(self) -> np.ndarray:
        """float32 [N, B]: means of `cells`. Two frames are never further apart in them than in `cells`."""
        shape = (len(self.frames), GRID, GRID, 3)
        return pooled(self.cells.reshape(shape), COARSE).reshape(len(self.frames), -1)

    @cached_property
    def still(self) -> np.ndarray:
        """float32 [C]: what stands still, as `cells`."""
        return np.asarray(np.median(self.cells, axis=0))

    @cached_property
    def active(self) -> np.ndarray:
        """bool [N, C]: where a frame differs from what stands still."""
        return np.asarray(np.abs(self.cells - self.still) > ACTIVE)

    @cached_property
    def detail(self) -> np.ndarray:
        """float [N]: the share of cells that differ from the next one, to the right or below."""
        return _detail(self.cells)

    @cached_property
    def stands_still(self) -> bool:
        """Whether most of the picture does, and shows enough to be told from another one: that of a fixed camera."""
        return float(np.median(self.active.mean(axis=1))) <= MOVING and float(_detail(self.still[None])[0]) >= DETAIL


def _detail(cells: np.ndarray) -> np.ndarray:
    gray = cells.reshape(-1, GRID, GRID, 3).mean(axis=3)
    steps = [np.abs(np.diff(gray, axis=axis, append=gray.take([-1], axis))) > STEP for axis in (1, 2)]
    return np.asarray((steps[0] | steps[1]).mean(axis=(1, 2)))


def pooled(frames: np.ndarray, side: int) -> np.ndarray:
    """float32 [N, side, side, 3] of [N, S, S, 3], S a multiple of it: the mean of every cell."""
    step = frames.shape[1] // side
    return frames.reshape(len(frames), side, step, side, step, 3).mean(axis=(2, 4), dtype=np.float32)


def cells_of(frames: np.ndarray) -> np.ndarray:
    """float32 [N, C] of [N, S, S, 3] without each frame's mean."""
    flat = pooled(frames, GRID).reshape(len(frames), GRID * GRID * 3)
    return np.asarray(flat - flat.mean(1, keepdims=True))


def _probes(cells: np.ndarray, still: np.ndarray) -> np.ndarray:
    """int [K]: of each eighth of a clip the frame in which most is going on, of those that show something."""
    activity = np.abs(cells - still).mean(1) + 1e-3 * cells.std(1)
    activity[cells.std(1) < PLAIN] = -1
    parts = np.array_split(np.arange(len(cells)), min(PROBES, len(cells)))
    best = np.array([part[np.argmax(activity[part])] for part in parts])
    return best[activity[best] >= 0]


def fingerprints(media: Iterable[MediaRef]) -> Iterator[tuple[str, ClipFingerprint | None]]:
    """(key, fingerprint) of each medium, None where it cannot be decoded; a few are held at a time."""
    refs = list({ref.key: ref for ref in media}.values())
    headers = probe_many(refs)
    plans = ((ref, header, _indices(header)) for ref, header in zip(refs, headers, strict=True))
    workers = min(16, len(os.sched_getaffinity(0)))
    with DecodePool(workers, TIMEOUT_S, SMALL) as pool, counting("comparing", len(refs)) as advance:
        while some := list(islice(plans, AT_ONCE)):
            answers = [
                pool.submit(DecodeRequest(ref.path, ref.member, ref.kind, indices, 0, 0)) if indices else None
                for ref, _, indices in some
            ]
            for (ref, header, indices), answer in zip(some, answers, strict=True):
                frames = answer.result() if answer else None
                advance()
                if frames is None or isinstance(frames, Problem):
                    yield ref.key, None
                    continue
                fine = frames.reshape(-1, FINE, FINE, 3)
                yield ref.key, ClipFingerprint.from_frames(fine, _times(header, indices), _aspect(header))


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


def _aspect(header: Header) -> float:
    return 1.0 if isinstance(header, list) else header.width / header.height
