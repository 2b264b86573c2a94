"""Nearest neighbours of gaps in a pool that is read in parts: exact, by inner products, with faiss.

A pair is as alike as its media and its questions are: weight * cosine of media + (1 - weight) * cosine of questions.
Where a row of the pool has one of them alone, that one counts in full. Vectors are centred by the pool's mean first:
those of a model point nearly the same way, and what they share tells nothing.

Shape letters: G gaps, N rows of a part, K neighbours of a gap, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vidqa.contract._optional import require
from vidqa.curation.embeddings import Part, Table

SAMPLED = 65_536  # rows of the pool that its mean is taken of
LOOK = 256  # dimensions in which candidates are compared with each other
SEED = 0


@dataclass(frozen=True)
class Centre:
    """Means of a pool's media and questions, and how much media count."""

    media: np.ndarray
    text: np.ndarray
    weight: float

    def rows(self, part: Part) -> np.ndarray:
        """float32 [N, D] of a pool. Inner products with `queries` are similarities."""
        one, other = self.weight**0.5, (1 - self.weight) ** 0.5
        alone = 1 / max(one, 1e-6), 1 / max(other, 1e-6)
        media_there, text_there = part.media.any(axis=1), part.text.any(axis=1)
        return self._joined(part, np.where(text_there, one, alone[0]), np.where(media_there, other, alone[1]))

    def queries(self, part: Part) -> np.ndarray:
        """float32 [G, D] of gaps."""
        same = np.ones(len(part))
        return self._joined(part, same * self.weight**0.5, same * (1 - self.weight) ** 0.5)

    def _joined(self, part: Part, media: np.ndarray, text: np.ndarray) -> np.ndarray:
        """Centred media and texts side by side, with these lengths [N]; rows of zeros stay."""
        width = part.media.shape[1]
        found = np.empty((len(part), width + part.text.shape[1]), np.float32)
        sides = ((part.media, self.media, media, found[:, :width]), (part.text, self.text, text, found[:, width:]))
        for vectors, mean, length, out in sides:
            np.subtract(vectors, mean, out=out)
            norm = np.sqrt(np.einsum("nd,nd->n", out, out))
            scale = np.where(vectors.any(axis=1), length / np.maximum(norm, 1e-6), 0)
            np.multiply(out, scale[:, None], out=out, casting="unsafe")
        return found


def centre_of(pool: Table, weight: float) -> Centre:
    """Means over rows that are spread over the whole pool."""
    sampled = pool.spread(SAMPLED)
    return Centre(_mean(sampled.media), _mean(sampled.text), weight)


def _mean(vectors: np.ndarray) -> np.ndarray:
    """Of the rows that are there; zeros where all are one, which would leave nothing to compare by."""
    there = vectors[np.any(vectors, axis=1)]
    if not len(there) or (there == there[0]).all():
        return np.zeros(vectors.shape[1], np.float32)
    return np.asarray(there.mean(0))


@dataclass
class Candidates:
    """The K nearest rows of each gap, nearest first: `row` int64 [G, K], -1 where there are fewer, `similarity`
    float32 [G, K]. `looks` has a short vector of the media of each such row."""

    row: np.ndarray
    similarity: np.ndarray
    looks: dict[int, np.ndarray]


def nearest(pool: Table, queries: np.ndarray, count: int, centre: Centre) -> Candidates:
    """The `count` nearest rows of each query. Raises ENV_PACKAGE_MISSING without faiss."""
    faiss: Any = require("faiss", "curation")
    found = Candidates(
        np.full((len(queries), count), -1, np.int64), np.full((len(queries), count), -np.inf, np.float32), {}
    )
    width = pool.widths[0]
    short = np.random.default_rng(SEED).standard_normal((width, min(LOOK, width)), np.float32)
    start = 0
    for part in pool.parts():
        vectors = centre.rows(part)
        similarity, place = faiss.knn(queries, vectors, min(count, len(vectors)), faiss.METRIC_INNER_PRODUCT)
        _merge(found, similarity, np.where(place >= 0, place + start, -1))
        for row in set(found.row[found.row >= start].tolist()):
            found.looks[row] = (vectors[row - start, :width] @ short).astype(np.float16)
        start += len(part)
    kept = set(found.row[found.row >= 0].tolist())
    found.looks = {row: look for row, look in found.looks.items() if row in kept}
    return found


def _merge(found: Candidates, similarity: np.ndarray, row: np.ndarray) -> None:
    """Keep the best of what was found before and now; of equal ones those that came first."""
    rows, values = np.concatenate([found.row, row], axis=1), np.concatenate([found.similarity, similarity], axis=1)
    order = np.argsort(-values, axis=1, kind="stable")[:, : found.row.shape[1]]
    found.row, found.similarity = np.take_along_axis(rows, order, 1), np.take_along_axis(values, order, 1)
