"""What frames look like at a glance: an 8 x 8 grey picture of each, made in the decode workers, compared in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SIDE = 8
FAR_BITS = 4  # of 64: pictures that differ in more are not the same
FAR_GREY = 6.0  # levels of 255 that pictures differ in on average
FINE = 8  # pixels of each cell and side that are looked at
PIECE = 256  # files compared at once, to bound memory


def thumbnails(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [N, 64] of uint8 [N, H, W, 3]: the mean grey of every cell of an 8 x 8 grid."""
    count, tall, wide = frames.shape[:3]
    side = SIDE * FINE
    rows, columns = np.arange(side) * tall // side, np.arange(side) * wide // side
    grey = frames[:, rows][:, :, columns].mean(axis=-1, dtype=np.float32)
    cells = grey.reshape(count, SIDE, FINE, SIDE, FINE).mean(axis=(2, 4))
    return cells.round().astype(np.uint8).reshape(count, SIDE * SIDE)


def glance(pictures: np.ndarray) -> bytes:
    """The first, the middle and the last of a file's thumbnails [N, 64]: 192 bytes."""
    return pictures[[0, len(pictures) // 2, len(pictures) - 1]].tobytes()


def alike(these: Sequence[bytes], those: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of indices whose glances are near duplicates: in each of the three pictures the same cells are brighter
    than the picture's mean, but for FAR_BITS, and the greys differ by at most FAR_GREY on average."""
    if not these or not those:
        return []
    left, right = _pictures(these), _pictures(those)
    left_bits, right_bits = _bits(left), _bits(right)
    pairs = []
    for start in range(0, len(left), PIECE):
        part = slice(start, start + PIECE)
        differing = np.bitwise_count(left_bits[part, None] ^ right_bits[None]).max(axis=-1)
        for at, other in np.argwhere(differing <= FAR_BITS).tolist():
            difference = np.abs(left[start + at] - right[other]).mean(axis=-1)
            if difference.max() <= FAR_GREY:
                pairs.append((start + at, other))
    return pairs


def _pictures(glances: Sequence[bytes]) -> np.ndarray:
    """float32 [N, 3, 64]"""
    return np.frombuffer(b"".join(glances), np.uint8).reshape(len(glances), 3, SIDE * SIDE).astype(np.float32)


def _bits(pictures: np.ndarray) -> np.ndarray:
    """uint64 [N, 3]: which cells are brighter than their picture's mean."""
    bright = pictures > pictures.mean(axis=-1, keepdims=True)
    return np.packbits(bright, axis=-1).view(np.uint64)[..., 0]
