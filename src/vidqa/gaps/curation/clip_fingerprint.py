"""The fingerprint of a clip: up to 256 of its frames as 32 x 32 colors, and its most distinctive frames (probes).

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

FINE, SIDE, GRID, COARSE = 64, 32, 16, 8  # cells per side: of probes, of all frames, and of two averaged grids
EXACT = 256  # pixels per side; below it, cell borders split pixels
MOST_FRAMES = 256
PROBES = 8
ACTIVE = 10.0  # levels of 255 by which an active cell differs from the static background
MOVING = 0.25  # median share of active cells up to which a camera counts as fixed
DETAIL = 0.3  # share of cells with edges from which two frames are not similar by chance
STEP = 6.0  # levels of 255 that count as an edge between two cells
PLAIN = 3.0  # levels of 255: a frame with a smaller deviation over its cells is blank
TIMEOUT_S = 120.0
AT_ONCE = 64  # clips that are decoded ahead
SMALL = "vidqa.gaps.curation.clip_fingerprint:small"  # name of the transform in a decode pool


def small(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """The mean color of every cell: uint8 [N, 64 * 64 * 3] of uint8 [N, H, W, 3]."""
    count, tall, wide = frames.shape[:3]
    for axis in (1, 2) if tall > wide else (2, 1):
        frames = _narrowed(frames, axis)
    return frames.round().astype(np.uint8).reshape(count, FINE * FINE * 3)


def _narrowed(frames: np.ndarray, axis: int) -> np.ndarray:
    """64 means along an axis, float32. On a short side cells share pixels; otherwise a crop would not align."""
    side = frames.shape[axis]
    if side < EXACT:
        weights = boxes(np.zeros(()), np.ones(()), FINE, side)
        return np.moveaxis(np.tensordot(weights, frames.astype(np.float32), axes=(1, axis)), 0, axis)
    edges = np.linspace(0, side, FINE + 1).round().astype(int)
    summed = np.add.reduceat(frames, edges[:-1], axis=axis, dtype=np.float32)
    return summed / np.diff(edges).astype(np.float32)[(slice(None), *(None,) * (3 - axis))]


def boxes(start: np.ndarray, size: np.ndarray, into: int, side: int) -> np.ndarray:
    """Weights float32 [..., into, side] that average `side` cells over `into` equal parts of an interval; `start` and
    `size` of the interval are shares of the side."""
    edges = (start[..., None] + size[..., None] * np.linspace(0, 1, into + 1)) * side
    low, high = edges[..., :-1, None], edges[..., 1:, None]
    cell = np.arange(side)
    covered = np.clip(np.minimum(high, cell + 1) - np.maximum(low, cell), 0, None)
    return np.asarray(covered / np.maximum(covered.sum(-1, keepdims=True), 1e-9), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class ClipFingerprint:
    """The fingerprint of a clip. `frames` uint8 [N, 32, 32, 3], in order, at `times_s` seconds. `probes` int [K] are
    its most distinctive frames, in finer cells in `fine` uint8 [K, 64, 64, 3]. `aspect` is width / height."""

    frames: np.ndarray
    times_s: np.ndarray
    probes: np.ndarray
    fine: np.ndarray
    aspect: float
    crops: dict[Any, Any] = field(default_factory=dict)  # cache of `crop_alignment`

    @classmethod
    def from_frames(cls, fine: np.ndarray, times_s: np.ndarray, aspect: float) -> ClipFingerprint:
        """The fingerprint of frames uint8 [N, 64, 64, 3]."""
        frames = pooled(fine, SIDE).round().astype(np.uint8)
        cells = cells_of(frames)
        probes = _probes(cells, np.asarray(np.median(cells, axis=0)))
        return cls(frames, times_s, probes, fine[probes], aspect)

    @cached_property
    def cells(self) -> np.ndarray:
        """Cell colors float32 [N, C] minus each frame's mean: re-encoding may change brightness a little."""
        return cells_of(self.frames)

    @cached_property
    def coarse(self) -> np.ndarray:
        """Means of `cells` on the coarse grid, float32 [N, B]. Distances of frames are never larger than in `cells`."""
        shape = (len(self.frames), GRID, GRID, 3)
        return pooled(self.cells.reshape(shape), COARSE).reshape(len(self.frames), -1)

    @cached_property
    def still(self) -> np.ndarray:
        """The static background, float32 [C], in the form of `cells`."""
        return np.asarray(np.median(self.cells, axis=0))

    @cached_property
    def active(self) -> np.ndarray:
        """Active cells, bool [N, C]: those in which a frame differs from the static background."""
        return np.asarray(np.abs(self.cells - self.still) > ACTIVE)

    @cached_property
    def detail(self) -> np.ndarray:
        """Share of cells that differ from the next one, to the right or below, float [N]."""
        return _detail(self.cells)

    @cached_property
    def stands_still(self) -> bool:
        """Whether the camera is fixed: most of the picture is static, with enough detail to be distinctive."""
        return float(np.median(self.active.mean(axis=1))) <= MOVING and float(_detail(self.still[None])[0]) >= DETAIL


def _detail(cells: np.ndarray) -> np.ndarray:
    gray = cells.reshape(-1, GRID, GRID, 3).mean(axis=3)
    steps = [np.abs(np.diff(gray, axis=axis, append=gray.take([-1], axis))) > STEP for axis in (1, 2)]
    return np.asarray((steps[0] | steps[1]).mean(axis=(1, 2)))


def pooled(frames: np.ndarray, side: int) -> np.ndarray:
    """Means of cells: float32 [N, side, side, 3] of [N, S, S, 3]; S is a multiple of `side`."""
    step = frames.shape[1] // side
    return frames.reshape(len(frames), side, step, side, step, 3).mean(axis=(2, 4), dtype=np.float32)


def cells_of(frames: np.ndarray) -> np.ndarray:
    """Cell colors minus each frame's mean, float32 [N, C] of [N, S, S, 3]."""
    flat = pooled(frames, GRID).reshape(len(frames), GRID * GRID * 3)
    return np.asarray(flat - flat.mean(1, keepdims=True))


def _probes(cells: np.ndarray, still: np.ndarray) -> np.ndarray:
    """Indices of probes, int [K]: in each eighth of a clip the frame with the most activity, except blank ones."""
    activity = np.abs(cells - still).mean(1) + 1e-3 * cells.std(1)
    activity[cells.std(1) < PLAIN] = -1
    parts = np.array_split(np.arange(len(cells)), min(PROBES, len(cells)))
    best = np.array([part[np.argmax(activity[part])] for part in parts])
    return best[activity[best] >= 0]


def fingerprints(media: Iterable[MediaRef]) -> Iterator[tuple[str, ClipFingerprint | None]]:
    """Key and fingerprint of each medium, None if it cannot be decoded; few are in memory at a time."""
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
