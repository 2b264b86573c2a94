"""Attention whose query, key and value are recomputed in backward: only its input and its output are saved.

The projections before attention are an eighth of a layer's work and a quarter of its activations; attention itself is
expensive to recompute in long samples, and its output is saved for later layers anyway. So backward recomputes query,
key and value for attention's own backward, which besides needs only the log-sum-exp of forward.

Shape letters: T tokens (or patches) of a pack, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import get_device_states, set_device_states

from vidqa.engine.model.attention import SavedForBackward, Segments, attend, cudnn_backward, cudnn_forward, takes_cudnn
from vidqa.engine.model.suffixes import Suffixes
from vidqa.engine.torch_private import TreeSpec, tree_flatten, tree_unflatten


class _Call(NamedTuple):
    """The arguments of a call that are not trained tensors."""

    before: Callable[..., tuple[torch.Tensor, ...]]  # (hidden, cos, sin, weights) -> query, key, value
    segments: Segments
    suffixes: Suffixes | None
    causal: bool
    tree: TreeSpec  # of the weights
    others: tuple[Any, ...]  # its leaves that are not tensors; None in place of a tensor

    def parts(self, hidden_TD: torch.Tensor, turns: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> Any:
        """Compute query, key and value."""
        tensors = iter(weights)
        leaves = [next(tensors) if leaf is None else leaf[0] for leaf in self.others]
        return self.before(hidden_TD, *turns, tree_unflatten(leaves, self.tree))

    def attended(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        query, key, value = parts
        return attend(query, key, value, self.segments, self.suffixes, causal=self.causal)


def recomputed_attention(
    before: Callable[..., tuple[torch.Tensor, ...]],
    hidden_TD: torch.Tensor,
    turns: tuple[torch.Tensor, torch.Tensor],
    weights: Any,
    segments: Segments,
    suffixes: Suffixes | None = None,
    *,
    causal: bool,
) -> torch.Tensor:
    """`attend(*before(hidden, *turns, weights), ...)` with fewer saved activations. `weights` is a named tuple of the
    inputs of `before`, nested at any depth. If cuDNN cannot compute the call, backward recomputes attention, too."""
    if not torch.is_grad_enabled():
        query, key, value = before(hidden_TD, *turns, weights)
        return attend(query, key, value, segments, suffixes, causal=causal)
    leaves, tree = tree_flatten(weights)
    others = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    call = _Call(before, segments, suffixes, causal, tree, others)
    return _RecomputedAttention.apply(call, hidden_TD, *turns, *tensors)


class _RecomputedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        """`inputs` are the call, hidden states, cosine and sine, and weights."""
        call, hidden_TD, cos, sin, *weights = inputs
        ctx.call, ctx.others = call, []
        ctx.random, ctx.devices = torch.get_rng_state(), get_device_states(hidden_TD)
        with torch.enable_grad():  # the same graph as in backward, so that the compiler makes only one
            parts = call.parts(_leaf(hidden_TD, ctx.needs_input_grad[1]), (cos, sin), weights)
        log_sums: list[torch.Tensor] = []
        if takes_cudnn(parts, call.segments, call.suffixes, call.causal):
            attended_THE, log_sums, ctx.others = cudnn_forward(parts, call.segments, call.suffixes, call.causal)
            attended = attended_THE.flatten(1)
        else:
            attended = call.attended(parts)
        ctx.save_for_backward(hidden_TD, cos, sin, attended, *log_sums, *weights)
        return attended

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> Any:
        call, (gradient,) = ctx.call, output_gradients
        hidden_TD, cos, sin, attended, *rest = ctx.saved_tensors
        log_sums, weights = rest[: len(ctx.others)], rest[len(ctx.others) :]
        hidden_TD = _leaf(hidden_TD, ctx.needs_input_grad[1])
        with torch.enable_grad(), _randomness(ctx):
            parts = call.parts(hidden_TD, (cos, sin), weights)
            if not log_sums:
                parts = (call.attended(parts),)
        gradients: Sequence[torch.Tensor] = (gradient,)
        if log_sums:
            query = parts[0]
            saved = SavedForBackward(attended.view_as(query), log_sums, ctx.others)
            gradients = cudnn_backward(gradient.view_as(query), parts, call.segments, call.suffixes, saved)
        learning = [number for number, needed in enumerate(ctx.needs_input_grad) if needed]
        inputs = (None, hidden_TD, cos, sin, *weights)
        input_gradients = torch.autograd.grad(
            parts, [inputs[number] for number in learning], gradients, allow_unused=True
        )
        by_number = dict(zip(learning, input_gradients, strict=True))
        return tuple(by_number.get(number) for number in range(len(inputs)))


def _leaf(hidden_TD: torch.Tensor, learns: bool) -> torch.Tensor:
    return hidden_TD.detach().requires_grad_(learns)


@contextmanager
def _randomness(ctx: Any) -> Iterator[None]:
    """Restore the random state of forward inside the block, so that dropout draws the same mask."""
    devices, states = ctx.devices
    with torch.random.fork_rng(devices):
        torch.set_rng_state(ctx.random)
        set_device_states(devices, states)
        yield
