"""What an objective is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from vidqa.planning.samples import Sample


@dataclass(frozen=True)
class Sums:
    """An objective on one batch. The loss of a step is the `sum` (a float32 scalar with a gradient) over all its
    batches and ranks, divided by the `count` over them: tokens, samples or pairs. `metrics` are sums without gradient,
    reported as their mean over the same count; of the tensors of `maxima` the largest number is reported, 0 where there
    is none above. Ranks of a context have some tokens of a sample each, so that a sum over
    tokens is right there and a function of whole samples is not."""

    sum: torch.Tensor
    count: int | torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    maxima: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """`model.packed(batch)` is the negative log-likelihood of every supervised token, float32 [N] in the order of
    `batch.owner_N`; under `torch.no_grad` another model that the objective holds gives its own.

    metrics, maxima      their names, the same for every batch: they are logged as train/<name>
    token_values(sample) values that batches carry in `batch.values`, each float32 [S] for the S tokens of a sample,
                         of which a batch has those of supervised tokens, [N]: weights, advantages, log-probabilities
    """

    @property
    def metrics(self) -> tuple[str, ...]: ...

    @property
    def maxima(self) -> tuple[str, ...]: ...

    def token_values(self, sample: Sample) -> Mapping[str, np.ndarray]: ...

    def __call__(self, model: Any, batch: Any) -> Sums: ...
