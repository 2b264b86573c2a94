"""Batches of preference pairs: both answers of a pair stand in one pack behind one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from vidqa.engine.data.collate import Batch, Collator
from vidqa.engine.data.feature_cache import FeatureCache
from vidqa.engine.model.attention import Segments
from vidqa.planning.pairs import PairSample
from vidqa.planning.samples import Sample


class PairCollator(Collator):
    """In `Batch.samples` the answers of pair n are 2n, the right one, and 2n + 1. With `share`, pairs about one video
    have that in common, too. `first` is added to n: the pairs of a validation set follow those of the training set."""

    first = 0

    def __init__(self, *args: Any, share: bool = False, **options: Any) -> None:
        super().__init__(*args, share=True, **options)
        self.shares_videos = share

    def behind(self, count: int) -> PairCollator:
        """The same collator for a set whose pairs are numbered from `count` on."""
        other = copy(self)
        other.first = count
        return other

    def __call__(
        self,
        numbers: Sequence[int],
        samples: Sequence[Sample],
        frames: Sequence[Sequence[Any]],
        features: FeatureCache | None = None,
    ) -> Batch:
        answers = [2 * (self.first + number) + side for number in numbers for side in (0, 1)]
        doubled = [of_sample for of_sample in frames for _ in (0, 1)]
        return super().__call__(answers, self._halves(samples), doubled, features)

    def segments(self, samples: Sequence[Sample]) -> tuple[Segments, Segments]:
        return super().segments(self._halves(samples))

    def _halves(self, samples: Sequence[Sample]) -> list[Sample]:
        halves: list[Sample] = []
        for place, pair in enumerate(samples):
            assert isinstance(pair, PairSample)
            halves += pair.halves(pair.prefix_key if self.shares_videos else str(place).encode())
        return halves
