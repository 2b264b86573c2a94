"""Context parallelism: ranks that compute one pack together, each its own rows of it.

Everything in a decoder layer but attention is done row by row. Around attention the ranks exchange rows for heads: each
gives away most of its rows of query, key and value and gets some heads of all rows, attends over the whole pack with
them, and the ranks exchange back (the all-to-all of DeepSpeed-Ulysses). Attention itself, its kernels, segments and
shared videos stay as they are. Frames that no row of a rank stands for are not computed there.

Shape letters: T rows of a pack, S = T / ranks those of one rank, H heads, K key heads, E values per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Context:
    """The ranks that hold the rows of the same packs; this one is number `rank` of `size`, and may be alone."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def rows(self, total: int) -> slice:
        """This rank's rows of a pack of `total`, which `size` divides."""
        share = total // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def whole(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """`before` gives query [S, H, E], key and value [S, K, E] of this rank's rows; what is returned gives those of
        all rows for this rank's heads: [T, H / ranks, E] and [T, K / ranks, E]. K is a multiple of the ranks, so that
        a query meets its own key head."""
        return before if self.size == 1 else lambda *inputs: self._heads_of(before(*inputs))

    def _heads_of(self, parts: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        by_rank = [part.unflatten(1, (self.size, -1)).transpose(0, 1) for part in parts]
        joined = _Exchange.apply(torch.cat(by_rank, dim=2), self.group)
        return joined.flatten(0, 1).split([part.shape[2] for part in by_rank], dim=1)

    def own(self, attended: torch.Tensor) -> torch.Tensor:
        """Exchange back: from [T, H / ranks * E], all rows of this rank's heads, to [S, H * E], its own rows of all
        heads."""
        if self.size == 1:
            return attended
        return _Exchange.apply(attended.unflatten(0, (self.size, -1)), self.group).transpose(0, 1).flatten(1)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Summed over the ranks, in place and without a gradient."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor


WHOLE = Context()


class _Exchange(torch.autograd.Function):
    """Part number i of the first dimension goes to rank i. The gradient takes the same way back."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        tensor, ctx.group = inputs
        return _exchanged(tensor, ctx.group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _exchanged(gradients[0], ctx.group), None


def _exchanged(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    received = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    dist.all_to_all_single(received, tensor.contiguous(), group=group)
    return received
