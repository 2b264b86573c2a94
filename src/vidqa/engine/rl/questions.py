"""Which questions a step draws: an endless sequence whose whole state is the number of questions taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

ORDERS_KEPT = 64  # permutations that are remembered


class QuestionStream:
    """Numbers of questions, epoch after epoch, each in an order of its own. With `balance`, labels take turns: as many
    questions of each as of the others, whatever their share of the set; a rare label's questions come more often."""

    def __init__(self, labels: Sequence[str], *, seed: int, shuffle: bool, balance: bool) -> None:
        self.seed, self.shuffle = seed, shuffle
        names = sorted(set(labels)) if balance else [""]
        self.classes = [
            np.flatnonzero([label == name for label in labels]) if balance else np.arange(len(labels)) for name in names
        ]
        self._order = lru_cache(ORDERS_KEPT)(self._permutation)

    def at(self, position: int) -> int:
        """The number of the question at a position of the sequence, from 0."""
        draw, label = divmod(position, len(self.classes))
        epoch, place = divmod(draw, len(self.classes[label]))
        return int(self._order(label, epoch)[place])

    def take(self, position: int, count: int) -> list[int]:
        return [self.at(place) for place in range(position, position + count)]

    def _permutation(self, label: int, epoch: int) -> np.ndarray:
        order = self.classes[label].copy()
        if self.shuffle:
            np.random.Generator(np.random.PCG64([self.seed, label, epoch])).shuffle(order)
        return order
