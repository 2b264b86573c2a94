"""Linear layers with LoRA adapters: a layer and its adapter in one matrix product.

What adapters give has the size of a layer's output. Written by a product of its own it is read again to be added, and
in backward every gradient is read once for the layer and once for its adapter. Here the input is made longer by what
the adapters bring down, and the weight by their other matrix: [x, x down'] [W, up]'. That is the same sum, whose parts
are added before they are rounded. A step without dropout is 2 % faster for it.

Shape letters: T tokens of a pack, D width, O width of an output, R width that the input is made longer by.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from vidqa.engine.model.quantized_base import Parts, dense

# Numbers that a matrix product takes at a time: R is a multiple of it. And R is more than the sum of ranks, so that a
# compiler finds it cheaper to keep weights, which are there anyway, than what is made of them.
AT_A_TIME = 64


@torch.library.custom_op("vidqa::own", mutates_args=())
def own(part: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own: a part of a tensor that is kept for backward would keep the whole tensor. It is an
    operation that torch.compile leaves alone; a `clone` it would drop."""
    return part.clone(memory_format=torch.contiguous_format)


@own.register_fake
def _(part: torch.Tensor) -> Any:
    return torch.empty_like(part, memory_format=torch.contiguous_format)


class Adapter(NamedTuple):
    """LoRA's two matrices of one projection: output += up(down(dropout(input))) * scale, a number or float32 []."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float | torch.Tensor
    dropout: float


def adapted(
    hidden_TD: torch.Tensor, weights: Sequence[torch.Tensor | Parts], adapters: Sequence[Adapter]
) -> tuple[torch.Tensor, ...]:
    """The products with frozen weights [O, D], all ordinary or all quantized, of layers that share an input, each with
    its adapter: [T, O]."""
    downs = [adapter.down.to(hidden_TD.dtype) for adapter in adapters]
    ups = [(adapter.up * adapter.scale).to(hidden_TD.dtype) for adapter in adapters]
    ranks = sum(map(len, downs))
    more = _width(ranks) - ranks
    parts = [weight if isinstance(weight, tuple) else (weight,) for weight in weights]
    counts, matrices = (len(ups), len(parts[0])), (*chain.from_iterable(parts), *ups)
    if not any(adapter.dropout for adapter in adapters):
        return _Adapted.apply(hidden_TD, F.pad(torch.cat(downs), (0, 0, 0, more)), None, counts, *matrices)
    dropped = (F.dropout(hidden_TD, adapter.dropout) for adapter in adapters)  # for each a mask of its own
    narrow = [F.linear(part, down) for part, down in zip(dropped, downs, strict=True)]
    return _Adapted.apply(hidden_TD, None, F.pad(torch.cat(narrow, dim=1), (0, more)), counts, *matrices)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """`inputs` are hidden states, down of all adapters [R, D] or what already came down [T, R], the numbers
        of layers and of parts of a weight, these parts, and up matrices."""
        hidden_TD, down_RD, narrow_TR, ctx.counts, *matrices = inputs
        weights, ups = _grouped(matrices, *ctx.counts)
        narrow_TR = F.linear(hidden_TD, down_RD) if narrow_TR is None else narrow_TR
        used = own(narrow_TR[:, : sum(up.shape[1] for up in ups)])  # as a part of `longer` it would keep all of that
        ctx.save_for_backward(None if down_RD is None else hidden_TD, used, down_RD, *matrices)
        ctx.width = hidden_TD.shape[1]
        longer = torch.cat([hidden_TD, narrow_TR], dim=1)
        whole = (dense(weight, hidden_TD) for weight in weights)
        joined = (torch.cat(pair, dim=1) for pair in zip(whole, _spread(ups), strict=True))
        return tuple(F.linear(longer, weight) for weight in joined)

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> Any:
        hidden_TD, used, down_RD, *matrices = ctx.saved_tensors
        weights, ups = _grouped(matrices, *ctx.counts)
        spread = _spread(ups)
        # The other way round than in forward: a compiler that found the same matrix in both would keep it for backward.
        whole = (dense(weight, output_gradients[0]) for weight in weights)
        joined = (torch.cat(pair, dim=1) for pair in zip(spread, whole, strict=True))
        products = [gradient @ weight for gradient, weight in zip(output_gradients, joined, strict=True)]
        to_narrow, to_hidden = sum(products[1:], products[0]).split([spread[0].shape[1], ctx.width], dim=1)
        parts = used.split([up.shape[1] for up in ups], dim=1)
        to_ups = [gradient.t() @ part for gradient, part in zip(output_gradients, parts, strict=True)]
        frozen = [None] * (ctx.counts[0] * ctx.counts[1])
        if down_RD is None:
            return to_hidden, None, to_narrow, None, *frozen, *to_ups
        # Added in float32, so that a compiler fuses the sum with what reads it: it makes a sum of two products in one
        # precision a product that first copies its output.
        to_hidden = (to_hidden + (to_narrow @ down_RD).float()).to(used.dtype)
        return to_hidden, to_narrow.t() @ hidden_TD, None, None, *frozen, *to_ups


def _grouped(
    matrices: Sequence[torch.Tensor], layers: int, parts: int
) -> tuple[list[torch.Tensor | Parts], Sequence[torch.Tensor]]:
    """Weights, each of one tensor or of the parts of a quantized one, and up matrices."""
    groups = [tuple(matrices[at * parts : (at + 1) * parts]) for at in range(layers)]
    return [group if parts > 1 else group[0] for group in groups], matrices[layers * parts :]


def _spread(ups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each matrix with zeros where the other layers' adapters come down: [O, R]."""
    *starts, ranks = accumulate((up.shape[1] for up in ups), initial=0)
    width = _width(ranks)
    return [F.pad(up, (start, width - start - up.shape[1])) for start, up in zip(starts, ups, strict=True)]


def _width(ranks: int) -> int:
    """R for a sum of ranks."""
    return ranks + AT_A_TIME - ranks % AT_A_TIME
