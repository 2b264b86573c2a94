"""Linear layers with LoRA adapters: a layer and its adapter in one matrix product.

What adapters give has the size of a layer's output. Written by a product of its own it is read again to be added, and
in backward every gradient is read once for the layer and once for its adapter. Here the input is made longer by what
the adapters bring down, and the weight by their other matrix: [x, x down'] [W, up]'. That is the same sum, 2 % faster a
step, and the two parts are added before they are rounded.

Shape letters: T tokens of a pack, D width, O width of an output, R width that the input is made longer by.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from vidqa.engine.model.whole import own

# Numbers that a matrix product takes at a time: R is a multiple of it. And R is more than the sum of ranks, so that a
# compiler finds it cheaper to keep weights, which are there anyway, than what is made of them.
AT_A_TIME = 64


class Adapter(NamedTuple):
    """LoRA's two matrices of one projection: output += up(down(dropout(input))) * scale."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float
    dropout: float


def added(hidden_TD: torch.Tensor, adapter: Adapter | None) -> torch.Tensor | float:
    """What an adapter with dropout adds: each has an input of its own."""
    if adapter is None:
        return 0.0
    down, up = (part.to(hidden_TD.dtype) for part in (adapter.down, adapter.up))
    return F.linear(F.linear(F.dropout(hidden_TD, adapter.dropout), down), up) * adapter.scale


def adapted(
    hidden_TD: torch.Tensor, weights: Sequence[torch.Tensor], adapters: Sequence[Adapter]
) -> tuple[torch.Tensor, ...]:
    """The products with frozen weights [O, D] of layers that share an input, each with its adapter: [T, O]."""
    down = torch.cat([adapter.down for adapter in adapters]).to(hidden_TD.dtype)
    down = F.pad(down, (0, 0, 0, AT_A_TIME - len(down) % AT_A_TIME))
    ups = [(adapter.up * adapter.scale).to(hidden_TD.dtype) for adapter in adapters]
    return _Adapted.apply(hidden_TD, down, len(weights), *weights, *ups)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """`inputs` are hidden states, down of all adapters [R, D], the number of layers, weights and up matrices."""
        hidden_TD, down_RD, ctx.layers, *matrices = inputs
        weights, ups = matrices[: ctx.layers], matrices[ctx.layers :]
        narrow_TR = F.linear(hidden_TD, down_RD)
        used = own(narrow_TR[:, : sum(up.shape[1] for up in ups)])  # as a part of `longer` it would keep all of that
        ctx.save_for_backward(hidden_TD, used, down_RD, *matrices)
        longer = torch.cat([hidden_TD, narrow_TR], dim=1)
        joined = (torch.cat(pair, dim=1) for pair in zip(weights, _spread(ups, len(down_RD)), strict=True))
        return tuple(F.linear(longer, weight) for weight in joined)

    @staticmethod
    def backward(ctx: Any, *pulls: torch.Tensor) -> Any:
        hidden_TD, used, down_RD, *matrices = ctx.saved_tensors
        weights, ups = matrices[: ctx.layers], matrices[ctx.layers :]
        # The other way round than in forward: a compiler that found the same matrix in both would keep it for backward.
        joined = (torch.cat(pair, dim=1) for pair in zip(_spread(ups, len(down_RD)), weights, strict=True))
        products = [pull @ weight for pull, weight in zip(pulls, joined, strict=True)]
        to_narrow, to_hidden = sum(products[1:], products[0]).split([len(down_RD), hidden_TD.shape[1]], dim=1)
        parts = used.split([up.shape[1] for up in ups], dim=1)
        to_ups = [pull.t() @ part for pull, part in zip(pulls, parts, strict=True)]
        # Added in float32, so that a compiler fuses the sum with what reads it: it makes a sum of two products in one
        # precision a product that first copies its output.
        to_hidden = (to_hidden + (to_narrow @ down_RD).float()).to(hidden_TD.dtype)
        return to_hidden, to_narrow.t() @ hidden_TD, None, *(None for _ in ups), *to_ups


def _spread(ups: Sequence[torch.Tensor], width: int) -> list[torch.Tensor]:
    """Each matrix with zeros where the other layers' adapters come down: [O, width]."""
    starts = accumulate((up.shape[1] for up in ups), initial=0)
    return [F.pad(up, (start, width - start - up.shape[1])) for start, up in zip(starts, ups, strict=False)]
