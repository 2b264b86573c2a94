"""Direct preference optimisation (DPO) of pairs of a right answer c and a wrong one r to one prompt.

With lp(a) the sum of an answer's log-probabilities under the model, ref(a) the same under the model that training began
with, and n the tokens of the right answer:

    margin = beta ((lp(c) - ref(c)) - (lp(r) - ref(r)))
    loss   = -(1 - smoothing) log sigmoid(margin) - smoothing log sigmoid(-margin) - sft_weight lp(c) / n

The loss of a step is the mean over its pairs. A pair whose media could not be decoded does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vidqa.engine.objectives._base import Sums


class Preference:
    """`engine` is the spec's table. `reference`, float32 [answers] by the numbers of `Batch.samples`, is given before
    the first step (`training.reference`)."""

    metrics: tuple[str, ...] = ("reward_margin", "reward_accuracy", "reward_chosen", "reward_rejected")
    maxima: tuple[str, ...] = ()
    reference: torch.Tensor

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def token_values(self, sample: Any) -> Mapping[str, np.ndarray]:
        return {}

    def answer_sums(self, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and number of tokens of every answer of a batch, float32 [answers], in the order of
        `batch.samples`."""
        nll_N = model.packed(batch)
        zeros = nll_N.new_zeros(len(batch.samples))
        tokens = zeros.index_add(0, batch.owner_N, torch.ones_like(nll_N))
        return zeros.index_add(0, batch.owner_N, -nll_N), tokens

    def __call__(self, model: Any, batch: Any) -> Sums:
        engine, (sums, tokens) = self.engine, self.answer_sums(model, batch)
        numbers = torch.tensor(batch.samples, dtype=torch.int64, device=sums.device)
        order = numbers.argsort()  # the answers of pair n are 2n, the right one, and 2n + 1
        numbers, sums, tokens = (values[order].view(-1, 2) for values in (numbers, sums, tokens))
        reward = engine.dpo_beta * (sums - self.reference[numbers])
        margin, smoothing = reward[:, 0] - reward[:, 1], engine.dpo_label_smoothing
        loss = -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)
        loss = loss - engine.dpo_sft_weight * sums[:, 0] / tokens[:, 0].clamp(min=1)
        counts = (tokens > 0).all(dim=1).float()
        with torch.no_grad():
            values = (margin, (margin > 0).float(), reward[:, 0], reward[:, 1])
            metrics = {name: (value * counts).sum() for name, value in zip(self.metrics, values, strict=True)}
        return Sums((loss * counts).sum(), counts.sum(), metrics)
