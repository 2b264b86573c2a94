"""Supervised fine-tuning: the negative log-likelihood of the answers' tokens, each with the same weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vidqa.engine.objectives._base import Sums
from vidqa.planning.samples import Sample


class Supervised:
    metrics: tuple[str, ...] = ()
    maxima: tuple[str, ...] = ()

    def token_values(self, sample: Sample) -> Mapping[str, np.ndarray]:
        return {}

    def __call__(self, model: Any, batch: Any) -> Sums:
        nll = model.packed(batch)
        return Sums(nll.sum(), len(nll))


SUPERVISED = Supervised()
