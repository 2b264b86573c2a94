"""Alignment of a cropped picture with the whole: candidate crops, and the fit of one crop.

A crop is (height, width, top, left), each a share of the whole picture's side. A crop keeps the shape of its pixels, so
two pictures' aspects leave one free number for its size; the fit then adjusts height and width separately.

Shape letters: V crops, M moments, F frames, B cells of an 8 x 8 grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from vidqa.gaps.curation.clip_fingerprint import COARSE, DETAIL, FINE, GRID, ClipFingerprint, boxes, pooled

Crop = tuple[float, float, float, float]

SIDES = (1.0, 15 / 16, 14 / 16, 13 / 16, 12 / 16, 11 / 16, 10 / 16, 9.5 / 16)  # of the longer side of a crop
LEAST = 0.44  # smallest side of a crop
STEP = 1 / 16  # step between positions, as a share of the side
DIM = 6.0  # lower bound for the deviation of a view's cells, in levels
ALIKE = 0.9  # frames with a higher correlation are redundant
PART, STILL = 0.0, "still"  # cache keys in place of a ratio: codes as a part; codes of the static background
MOMENTS, FRAMES = 4, 32  # cropped moments of a whole; frames of a part for comparison


@lru_cache(maxsize=64)
def ways(ratio: float) -> tuple[Crop, ...]:
    """Candidate crops of a whole if the part's aspect is `ratio` times the whole's; the whole is not included."""
    crops = []
    for side in SIDES:
        height, width = side * min(1, 1 / ratio), side * min(1, ratio)
        if min(height, width) < LEAST or min(height, width) > 0.97:
            continue
        crops += [(height, width, top, left) for top in _places(1 - height) for left in _places(1 - width)]
    return tuple(crops)


def _places(room: float) -> list[float]:
    return np.linspace(0, room, 1 + round(room / STEP)).tolist()


def ratio_of(whole: ClipFingerprint, part: ClipFingerprint) -> float:
    """The ratio for `ways`, rounded so that files whose sides the encoder rounded count as equal."""
    return float(np.exp(np.round(np.log(part.aspect / whole.aspect) / 0.08) * 0.08))


@lru_cache(maxsize=64)
def _way_boxes(ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Averaging weights of rows and of columns for each crop, float32 [V, 8, 64]."""
    height, width, top, left = np.array(ways(ratio)).reshape(-1, 4).T  # there may be none
    return boxes(top, height, COARSE, FINE), boxes(left, width, COARSE, FINE)


@lru_cache(maxsize=1)
def _whitening() -> np.ndarray:
    """A whitening transform, float32 [B, B]: cosine transform of an 8 x 8 grid with equal weight for fine and coarse
    structure and none for the mean. Coarse structures are similar in all pictures."""
    at = np.arange(COARSE)
    waves = np.cos(np.pi * (at[:, None] + 0.5) * at / COARSE) * np.where(at, np.sqrt(2 / COARSE), np.sqrt(1 / COARSE))
    weight = np.hypot(at[:, None], at)
    return np.asarray(np.einsum("ra,cb,ab->rcab", waves, waves, weight).reshape(COARSE**2, COARSE**2), np.float32)


def codes(gray: np.ndarray) -> np.ndarray:
    """Unit vectors float32 [..., B] of gray grids [..., 8, 8]; the inner product of two is their correlation."""
    vectors = gray.reshape(*gray.shape[:-2], COARSE**2) @ _whitening()
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6))


def _apart(vectors: np.ndarray, most: int) -> np.ndarray:
    """Indices of vectors, int [<= most], each unlike the previous one; evenly subsampled if there are too many."""
    indices: list[int] = []
    for at, vector in enumerate(vectors):
        if not indices or float(vectors[indices[-1]] @ vector) < ALIKE:
            indices.append(at)
    chosen = np.array(indices, int)
    return chosen[np.linspace(0, len(chosen) - 1, most).round().astype(int)] if len(chosen) > most else chosen


def part_codes(part: ClipFingerprint) -> tuple[np.ndarray, np.ndarray]:
    """Codes float32 [F, B] and indices int [F] of different frames with enough detail: on a plain background all crops
    look alike."""
    if PART not in part.crops:
        shown = np.flatnonzero(part.detail >= DETAIL)
        vectors = codes(pooled(part.frames[shown], COARSE).mean(axis=3))
        indices = _apart(vectors, FRAMES)
        part.crops[PART] = vectors[indices], shown[indices]
    return part.crops[PART]


def whole_codes(whole: ClipFingerprint, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes float32 [V, M, B] and indices int [M] among the probes, of different moments under all crops."""
    if ratio not in whole.crops:
        gray = whole.fine.astype(np.float32).mean(axis=3)
        moments = _apart(codes(pooled(whole.fine, COARSE).mean(axis=3)), MOMENTS)
        rows, columns = _way_boxes(ratio)
        narrow = np.tensordot(rows, gray[moments], axes=(2, 1))  # [V, 8, M, 64]
        whole.crops[ratio] = codes(np.einsum("vgmc,vhc->vmgh", narrow, columns, optimize=True)), moments
    return whole.crops[ratio]


def still_codes(clip: ClipFingerprint, ratio: float) -> np.ndarray:
    """Codes float32 [V, B] of the static background of a whole under all crops; [1, B] uncropped for the ratio PART."""
    if (STILL, ratio) not in clip.crops:
        crops = ((1.0, 1.0, 0.0, 0.0),) if ratio == PART else ways(ratio)
        clip.crops[STILL, ratio] = codes(_still_cropped(clip, crops))
    return np.asarray(clip.crops[STILL, ratio])


def _still_cropped(clip: ClipFingerprint, crops: Sequence[Crop]) -> np.ndarray:
    """Gray levels of the cropped static background, float32 [V, 8, 8]."""
    height, width, top, left = np.array(crops).reshape(-1, 4).T
    rows, columns = boxes(top, height, COARSE, GRID), boxes(left, width, COARSE, GRID)
    gray = clip.still.reshape(GRID, GRID, 3).mean(axis=2)
    return np.asarray(rows @ gray @ columns.swapaxes(1, 2))


def view_distances(whole: ClipFingerprint, part: ClipFingerprint, crops: Sequence[Crop]) -> np.ndarray:
    """The distance between the static backgrounds of a part and of a cropped whole, float [V]: the median over all
    cells, relative to that of the part's deviation. Objects in front of less than half of the cells do not matter."""
    view = pooled(part.still.reshape(1, GRID, GRID, 3), COARSE).mean(axis=3).reshape(1, -1)
    gaps = _still_cropped(whole, crops).reshape(len(crops), -1) - view
    return np.asarray(_spread(gaps) / np.maximum(_spread(view), DIM))


def _spread(levels: np.ndarray) -> np.ndarray:
    return np.asarray(np.median(np.abs(levels - np.median(levels, axis=1, keepdims=True)), axis=1))


def cropped(fine: np.ndarray, crop: Crop) -> np.ndarray:
    """Cropped pictures, float32 [M, 16, 16, 3] of [M, 64, 64, 3]."""
    height, width, top, left = (np.array(value) for value in crop)
    rows, columns = boxes(top, height, GRID, FINE), boxes(left, width, GRID, FINE)
    return np.einsum("gr,mrcx,hc->mghx", rows, fine.astype(np.float32), columns, optimize=True)


def roughly_placed(moment: np.ndarray, target: np.ndarray, crop: Crop) -> tuple[Crop, float]:
    """Align a crop: the one near `crop` for which the codes of a moment [64, 64, 3] and of the cells [C] correlate
    most, and the correlation."""
    gray, aim = moment.mean(axis=2, dtype=np.float32)[None], target.reshape(1, GRID, GRID, 3)
    aim_codes = codes(pooled(aim, COARSE).mean(axis=3))
    alike = 0.0
    for step in (1 / 32, 1 / 64, 1 / 128):
        crop, alike = _likest(gray, aim_codes, crop, step)
    return crop, alike


def placed(moments: np.ndarray, targets: np.ndarray, rough: Crop) -> Crop:
    """Refine a crop: the one near `rough` that makes moments [M, 64, 64, 3] most similar to the cells [M, C]. Rows and
    columns are fitted alternately, in smaller and smaller steps."""
    moments, aims = moments.astype(np.float32), targets.reshape(-1, GRID, GRID, 3)
    height, width, top, left = rough
    for step in (1 / 64, 1 / 128, 1 / 256, 1 / 512):
        narrow = np.einsum("gc,mrcx->rmgx", boxes(np.array(left), np.array(width), GRID, FINE), moments)
        height, top = _best(narrow, aims.transpose(1, 0, 2, 3), height, top, step)
        flat = np.einsum("gr,mrcx->cmgx", boxes(np.array(top), np.array(height), GRID, FINE), moments)
        width, left = _best(flat, aims.transpose(2, 0, 1, 3), width, left, step)
    return height, width, top, left


def _likest(gray: np.ndarray, aims: np.ndarray, crop: Crop, step: float) -> tuple[Crop, float]:
    """The crop of moments [M, 64, 64] whose codes correlate most with these [M, B], among 25 shifts of both rows and
    columns; and the correlation."""
    height, width, top, left = crop
    tops, heights = _moved(top, height, step)
    lefts, widths = _moved(left, width, step)
    narrow = np.tensordot(boxes(tops, heights, COARSE, FINE), gray, axes=(2, 1))  # [rows, 8, M, 64]
    pictures = np.einsum("vgmc,whc->vwmgh", narrow, boxes(lefts, widths, COARSE, FINE), optimize=True)
    alike = (codes(pictures) * aims).sum(axis=3).mean(axis=2)
    row, column = np.unravel_index(int(alike.argmax()), alike.shape)
    best = float(heights[row]), float(widths[column]), float(tops[row]), float(lefts[column])
    return best, float(alike[row, column])


def _moved(start: float, size: float, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Starts and sizes of intervals whose ends are shifted by up to two steps."""
    move = step * np.arange(-2, 3)
    low, high = (grid.ravel() for grid in np.meshgrid(start + move, start + size + move))
    low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    good = high - low >= LEAST - STEP
    return low[good], (high - low)[good]


def _best(lines: np.ndarray, aims: np.ndarray, size: float, start: float, step: float) -> tuple[float, float]:
    """Size and start of the interval of 64 lines [64, M, L, 3] that is most similar to the aims [16, M, L, 3]."""
    starts, sizes = _moved(start, size, step)
    pictures = np.tensordot(boxes(starts, sizes, GRID, FINE), lines, axes=(2, 0))
    apart = ((pictures - pictures.mean(axis=(1, 3, 4), keepdims=True) - aims) ** 2).mean(axis=(1, 2, 3, 4))
    best = int(apart.argmin())
    return float(sizes[best]), float(starts[best])
