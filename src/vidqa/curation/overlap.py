"""Whether two clips show the same moments: re-encoded, trimmed, cropped, or cut from one recording with an overlap.

The moments of one clip in which most is going on are looked for among all frames of the other. A moment is the same
where the whole frame is, and also those parts of it that differ from what stands still: two clips of one fixed camera
share the still parts alone. Two moments are needed, unless nothing moves in a clip.

Shape letters: K probes, N frames, C cells, V ways to crop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

import numpy as np

from vidqa.curation.frame_looks import ACTIVE, GRID, SIDE, Look, cells_of

SAME, SAME_ACTIVE = 6.0, 10.0  # levels, root mean square: of the whole frame; of the cells in which something goes on
SAME_STILL = 3.0  # of a frame in which nothing does
NEEDED = 2  # moments
LIKELY = 0.8  # correlation of a cropped frame, roughly placed
SCALES, FINE = (0.9, 0.8, 0.7, 0.6), 0.02  # sides that a crop leaves, and the steps in which it is then placed
FEW_CELLS = 9  # numbers, three of each cell
STRUCTURE = 8.0  # levels by which what stands still varies: before a plain ground every crop looks alike
WAYS = 2  # to crop that are looked at closely


def overlaps(one: Look, other: Look) -> str:
    """ "same moments", "cropped", or "" where they share nothing. It does not matter which is which."""
    if _shares(one, other) or _shares(other, one):
        return "same moments"
    if _shares_cropped(one, other) or _shares_cropped(other, one):
        return "cropped"
    return ""


def _shares(probed: Look, whole: Look) -> bool:
    """Whether moments of one are frames of the other."""
    if not len(probed.probes):
        return False
    moments = probed.cells[probed.probes]
    apart = _squares(moments, whole.cells)
    found = []
    for number, near in enumerate(apart <= SAME**2):
        for at in np.flatnonzero(near)[np.argsort(apart[number][near])][:5].tolist():
            if _is_same(moments[number], whole.cells[at], probed.active[number]):
                found.append((float(probed.times_s[probed.probes[number]]), float(whole.times_s[at])))
                break
    return _enough(found, probed)


def _squares(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """float32 [K, N]: mean squares of differences, by one product."""
    found = (these**2).mean(1)[:, None] + (those**2).mean(1) - 2 * these @ those.T / these.shape[1]
    return np.asarray(np.maximum(found, 0))


def _is_same(moment: np.ndarray, frame: np.ndarray, active: np.ndarray) -> bool:
    gap = moment - frame
    whole = float(np.sqrt((gap**2).mean()))
    if active.sum() < FEW_CELLS:
        return whole <= SAME_STILL
    return whole <= SAME and float(np.sqrt((gap[active] ** 2).mean())) <= SAME_ACTIVE


def _enough(found: Sequence[tuple[float, float]], probed: Look) -> bool:
    """Whether as many moments agree as are needed, in the same order in both clips."""
    if len(probed.frames) == 1 or not probed.active.any():
        return len(found) == len(probed.probes) > 0  # an image, or a clip that stands still
    ordered = sorted(found)
    steps = [there for _, there in ordered]
    rising = [at for number, at in enumerate(steps) if all(at > before for before in steps[:number])]
    return len(rising) >= min(NEEDED, len(probed.probes))


def crops(scale: float) -> Iterator[tuple[float, float, float]]:
    """(scale, top, left) as shares of a side: nine places."""
    room = (1 - scale) / 2
    for top, left in product((0.0, room, 2 * room), repeat=2):
        yield scale, top, left


CROPS = tuple(crop for scale in SCALES for crop in crops(scale))


def cropped(frames: np.ndarray, crop: tuple[float, float, float]) -> np.ndarray:
    """float32 [K, 32, 32, 3] of [K, 32, 32, 3]: a part of each, stretched to the whole, with bilinear weights."""
    scale, top, left = crop
    rows, columns = _stretch(round(scale, 4), round(top, 4)), _stretch(round(scale, 4), round(left, 4))
    return np.einsum("ab,kbcd,ec->kaed", rows, frames.astype(np.float32), columns, optimize=True)


@lru_cache(maxsize=1 << 16)
def _stretch(scale: float, start: float) -> np.ndarray:
    """float32 [32, 32]: rows of weights that take each cell from where it lies in the whole."""
    at = (start + scale * (np.arange(SIDE) + 0.5) / SIDE) * SIDE - 0.5
    low = np.minimum(np.maximum(np.floor(at).astype(int), 0), SIDE - 2)
    share = np.minimum(np.maximum(at - low, 0), 1).astype(np.float32)
    weights = np.zeros((SIDE, SIDE), np.float32)
    weights[np.arange(SIDE), low], weights[np.arange(SIDE), low + 1] = 1 - share, share
    return weights


def _shares_cropped(whole: Look, part: Look) -> bool:
    """Whether the second is a crop of the first: moments of the first, all cropped alike, are frames of the second."""
    needed = min(NEEDED, len(whole.probes))
    if not needed or min(whole.still.std(), part.still.std()) < STRUCTURE:
        return False
    likeness = _crop_cells(whole) @ _unit(part.cells).T  # [V, K, N]
    best_VK = likeness.max(axis=2)
    # As many moments as are needed must be likely; of a crop that is roughly placed, the second best counts.
    likely = np.sort(best_VK, axis=1)[:, -needed]
    for way in np.argsort(-likely)[:WAYS].tolist():
        if likely[way] < LIKELY:
            break
        number = int(best_VK[way].argmax())
        moments = whole.frames[whole.probes]
        crop = _placed(moments[number], part.cells[int(likeness[way, number].argmax())], CROPS[way])
        if _enough(_matches(whole, cells_of(cropped(moments, crop)), part), whole):
            return True
    return False


def _matches(whole: Look, moments: np.ndarray, part: Look) -> list[tuple[float, float]]:
    """(time in one, time in the other) of cropped moments [K, C] that are frames of the part."""
    apart = _squares(moments, part.cells)
    found = []
    for number, at in enumerate(apart.argmin(axis=1).tolist()):
        going_on = np.abs(part.cells[at] - part.still) > ACTIVE
        if _is_same(moments[number], part.cells[at], going_on):
            found.append((float(whole.times_s[whole.probes[number]]), float(part.times_s[at])))
    return found


@lru_cache(maxsize=4096)
def _crop_cells(whole: Look) -> np.ndarray:
    """float32 [V, K, C] of length 1: the probes of a clip in all ways to crop."""
    moments = whole.frames[whole.probes]
    return np.stack([_unit(cells_of(cropped(moments, crop))) for crop in CROPS])


def _placed(moment: np.ndarray, target: np.ndarray, rough: tuple[float, float, float]) -> tuple[float, float, float]:
    """The crop near a rough one that makes a moment [32, 32, 3] most like the cells [C]."""
    crop, step = rough, 4 * FINE
    while step >= FINE / 2:
        near = [
            (scale, top, left)
            for scale, top, left in product(*((value - step, value, value + step) for value in crop))
            if 0.5 <= scale <= 1 and 0 <= top <= 1 - scale + 1e-6 and 0 <= left <= 1 - scale + 1e-6
        ]
        made = cells_of(np.concatenate([cropped(moment[None], each) for each in [crop, *near]]))
        best = int(((made - target) ** 2).mean(1).argmin())
        better = [crop, *near][best]
        crop, step = better, step if better != crop else step / 2
    return crop


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6))


assert GRID * 2 == SIDE
