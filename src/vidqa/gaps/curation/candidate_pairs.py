"""Which of many pairs of clips are worth a close look: by a few matrix products over all of them.

No pair that shares moments is passed over: means of cells are never further apart than the cells. A crop is passed over
where the correlation of `crops.codes` is below LIKELY in all ways, as it would be in the close look; before fixed
cameras whose views are not alike, below LIKELY_MOVED.

Shape letters: P vectors of all clips of a block, Q vectors of one other clip, D width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from vidqa.gaps.curation.clip_fingerprint import ClipFingerprint
from vidqa.gaps.curation.clip_matching import LIKELY, LIKELY_MOVED, SAME, MatchModes
from vidqa.gaps.curation.crop_alignment import PART, part_codes, ratio_of, still_codes, whole_codes

Vectors = Callable[[ClipFingerprint], np.ndarray]


def candidate_pairs(
    block: Sequence[ClipFingerprint], held: Sequence[ClipFingerprint]
) -> Iterator[tuple[int, int, MatchModes]]:
    """Places in both of the pairs to compare, and how. A block of some dozens is worth its while."""
    of_shape = defaultdict(list)
    for at, clip in enumerate(block):
        of_shape[round(clip.aspect, 3)].append(at)
    for places in of_shape.values():
        for number, modes in enumerate(_modes([block[at] for at in places], held)):
            for at in np.flatnonzero(modes.any(axis=0)).tolist():
                yield places[at], number, MatchModes(*modes[:, at].tolist())


def _modes(block: Sequence[ClipFingerprint], held: Sequence[ClipFingerprint]) -> Iterator[np.ndarray]:
    """bool [3, clips of the block, which have one shape] for each that is held, as `MatchModes` has them."""
    moments, frames, parts, stills = (
        _Joined(block, vectors) for vectors in (_moments, _frames, _part, partial(still_codes, ratio=PART))
    )
    wholes: dict[float, tuple[_Joined, ...]] = {}
    fixed = np.array([clip.stands_still for clip in block])
    for other in held:
        ratio = ratio_of(block[0], other)
        if ratio not in wholes:
            wholes[ratio] = tuple(_Joined(block, partial(vectors, ratio=ratio)) for vectors in (_whole, still_codes))
        close = np.maximum(moments.best(_mirrored(_frames(other))), frames.best(_mirrored(_moments(other))))
        into = ratio_of(other, block[0])
        alike = np.stack([wholes[ratio][0].best(_part(other)), parts.best(_whole(other, into))])
        least = np.full(alike.shape, LIKELY)
        if other.stands_still:
            view = np.stack([wholes[ratio][1].best(still_codes(other, PART)), stills.best(still_codes(other, into))])
            least[fixed & (view < LIKELY)] = LIKELY_MOVED
        yield np.stack([close >= -(SAME**2) / 2, *(alike >= least)])


class _Joined:
    """Vectors [P, D] of all clips, side by side."""

    def __init__(self, block: Sequence[ClipFingerprint], vectors: Vectors) -> None:
        parts = [vectors(clip) for clip in block]
        self.vectors = np.ascontiguousarray(np.concatenate(parts).T)
        lengths = np.array([len(vectors_of_clip) for vectors_of_clip in parts])
        self.there = lengths > 0
        self.starts = (np.cumsum(lengths) - lengths)[self.there]

    def best(self, these: np.ndarray) -> np.ndarray:
        """float [clips]: the greatest product of one of a clip's vectors and one of these [Q, D]; -inf without any."""
        products = np.full(len(self.there), -np.inf)
        if len(these) and self.there.any():
            products[self.there] = np.maximum.reduceat((these @ self.vectors).max(axis=0), self.starts)
        return products


def _frames(clip: ClipFingerprint) -> np.ndarray:
    """[N, D], so that the product with a mirrored one is half the mean square of their difference, below zero."""
    cells = clip.coarse / np.float32(np.sqrt(clip.coarse.shape[1]))
    ones = np.ones((len(cells), 1), np.float32)
    return np.concatenate([cells, -0.5 * (cells**2).sum(1, keepdims=True), ones], axis=1)


def _mirrored(vectors: np.ndarray) -> np.ndarray:
    return np.concatenate([vectors[:, :-2], vectors[:, :-3:-1]], axis=1)


def _moments(clip: ClipFingerprint) -> np.ndarray:
    return _frames(clip)[clip.probes]


def _part(clip: ClipFingerprint) -> np.ndarray:
    return part_codes(clip)[0]


def _whole(clip: ClipFingerprint, ratio: float) -> np.ndarray:
    moments = whole_codes(clip, ratio)[0]
    return moments.reshape(-1, moments.shape[-1])
