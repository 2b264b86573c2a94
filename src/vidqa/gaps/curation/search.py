"""Nearest neighbours of gaps in a pool that is read in parts: exact, by inner products, with faiss.

The similarity of a pair is weight * cosine of media + (1 - weight) * cosine of questions. If a row of the pool has only
one of them, that one counts in full. Vectors are centred by the pool's mean first: a model's embeddings point in nearly
the same direction, and their common component carries no information.

Shape letters: G gaps, N rows of a part, K neighbours of a gap, D width.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from vidqa.core._optional import require
from vidqa.gaps.curation.embeddings import Part, Table

SAMPLED = 65_536  # rows of the pool for its mean
PROJECTED_WIDTH = 256  # dimensions for comparison of candidates with each other
BLOCK_ROWS = 16_384  # rows of the pool that one core compares with all gaps at a time
CORES = 16  # at most; each holds separate rows in memory
SEED = 0


@dataclass(frozen=True)
class EmbeddingMean:
    """Means of a pool's media and question embeddings, and the weight of media."""

    media: np.ndarray
    text: np.ndarray
    weight: float

    def rows(self, part: Part, out: np.ndarray | None = None) -> np.ndarray:
        """Vectors float32 [N, D] of a pool, in `out` if given. Their products with `queries` are similarities."""
        media, text = _is_present(part.media), _is_present(part.text)
        one, other = self.weight**0.5, (1 - self.weight) ** 0.5
        alone = 1 / max(one, 1e-6), 1 / max(other, 1e-6)
        return self._joined(part, media * np.where(text, one, alone[0]), text * np.where(media, other, alone[1]), out)

    def queries(self, part: Part) -> np.ndarray:
        """Joined vectors float32 [G, D] of gaps."""
        media, text = _is_present(part.media), _is_present(part.text)
        return self._joined(part, media * self.weight**0.5, text * (1 - self.weight) ** 0.5)

    def _joined(self, part: Part, media: np.ndarray, text: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Concatenate centred media and texts, scaled to these lengths [N]."""
        width = part.media.shape[1]
        joined = np.empty((len(part), width + part.text.shape[1]), np.float32) if out is None else out
        sides = ((part.media, self.media, media, joined[:, :width]), (part.text, self.text, text, joined[:, width:]))
        for vectors, mean, length, side in sides:
            np.subtract(vectors, mean, out=side)
            scale = length / np.maximum(np.sqrt(np.einsum("nd,nd->n", side, side)), 1e-6)
            np.multiply(side, scale.astype(np.float32)[:, None], out=side)
        return joined


def _is_present(vectors: np.ndarray) -> np.ndarray:
    """The rows that are not zeros, bool [N]."""
    return np.einsum("nd,nd->n", vectors, vectors) > 0


def pool_mean(pool: Table, weight: float) -> EmbeddingMean:
    """Means over rows that are evenly spread over the whole pool."""
    media, text = (_Mean(width) for width in pool.widths)
    for part in pool.spread(SAMPLED):
        media.take(part.media)
        text.take(part.text)
    return EmbeddingMean(media.value, text.value, weight)


class _Mean:
    """The mean of the nonzero rows; zeros if all rows are equal, since centring would leave nothing to compare."""

    def __init__(self, width: int) -> None:
        self.total, self.count, self.differ = np.zeros(width), 0, False
        self.first: np.ndarray | None = None

    def take(self, vectors: np.ndarray) -> None:
        there = _is_present(vectors)
        rows = vectors if there.all() else vectors[there]
        if not len(rows):
            return
        self.first = rows[0].copy() if self.first is None else self.first
        self.differ = self.differ or bool((rows != self.first).any())
        self.total += rows.sum(axis=0)
        self.count += len(rows)

    @property
    def value(self) -> np.ndarray:
        return (self.total / self.count if self.differ else self.total * 0).astype(np.float32)


@dataclass
class Candidates:
    """The K nearest rows of each gap, nearest first: `row` int64 [G, K], -1 if there are fewer, `similarity` float32
    [G, K]. `projections` has a random projection of the media of each such row."""

    row: np.ndarray
    similarity: np.ndarray
    projections: dict[int, np.ndarray]


def nearest(pool: Table, queries: np.ndarray, count: int, mean: EmbeddingMean) -> Candidates:
    """The `count` nearest rows of each query. Raises ENV_PACKAGE_MISSING without faiss."""
    faiss: Any = require("faiss", "curation")
    candidates = Candidates(
        np.full((len(queries), count), -1, np.int64), np.full((len(queries), count), -np.inf, np.float32), {}
    )
    width = pool.widths[0]
    short = np.random.default_rng(SEED).standard_normal((width, min(PROJECTED_WIDTH, width)), np.float32)
    for start, vectors, (similarity, place) in _compared(pool, queries, count, mean, faiss):
        _merge(candidates, similarity, np.where(place >= 0, place + start, -1))
        new = np.unique(candidates.row[candidates.row >= start])
        candidates.projections |= zip(
            new.tolist(), (vectors[new - start, :width] @ short).astype(np.float16), strict=True
        )
    rows = set(candidates.row[candidates.row >= 0].tolist())
    candidates.projections = {row: vector for row, vector in candidates.projections.items() if row in rows}
    return candidates


def _compared(
    pool: Table, queries: np.ndarray, count: int, mean: EmbeddingMean, faiss: Any
) -> Iterator[tuple[int, np.ndarray, tuple[np.ndarray, np.ndarray]]]:
    """First row's index, vectors float32 [N, D], similarities and indices of the nearest [G, K], of all rows in order.

    Each core compares a separate part with one thread: threads that share a part wait for each other, on a busy machine
    most of the time.
    """
    cores = min(CORES, len(os.sched_getaffinity(0)))
    buffers = [np.empty((min(BLOCK_ROWS, pool.rows), sum(pool.widths)), np.float32) for _ in range(cores + 1)]
    waiting: deque[tuple[int, np.ndarray, Future[tuple[np.ndarray, np.ndarray]]]] = deque()
    with ThreadPoolExecutor(cores, initializer=faiss.omp_set_num_threads, initargs=(1,)) as threads:
        for start, vectors in _centred(pool, mean, buffers):
            most, measure = min(count, len(vectors)), faiss.METRIC_INNER_PRODUCT
            waiting.append((start, vectors, threads.submit(faiss.knn, queries, vectors, most, measure)))
            if len(waiting) == cores + 1:  # no buffer is free
                first, part, compared = waiting.popleft()
                yield first, part, compared.result()
        for first, part, compared in waiting:
            yield first, part, compared.result()


def _centred(pool: Table, mean: EmbeddingMean, buffers: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """The index of the first row and vectors float32 [N, D], for all rows; uses the buffers in turn, as many rows as
    one holds."""
    buffer_cycle, start, filled = cycle(buffers), 0, 0
    buffer = next(buffer_cycle)
    for part in pool.parts():
        if filled + len(part) > len(buffer):
            yield start, buffer[:filled]
            buffer, start, filled = next(buffer_cycle), start + filled, 0
        mean.rows(part, buffer[filled : filled + len(part)])
        filled += len(part)
    if filled:
        yield start, buffer[:filled]


def _merge(candidates: Candidates, similarity: np.ndarray, row: np.ndarray) -> None:
    """Keep the best of earlier and new neighbours; earlier ones first if equal."""
    rows, values = (
        np.concatenate([candidates.row, row], axis=1),
        np.concatenate([candidates.similarity, similarity], axis=1),
    )
    order = np.argsort(-values, axis=1, kind="stable")[:, : candidates.row.shape[1]]
    candidates.row, candidates.similarity = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
