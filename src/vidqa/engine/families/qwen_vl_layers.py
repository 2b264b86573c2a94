"""The dense parts of the layers of Qwen2.5-VL and Qwen3-VL: everything before attention, and everything after it.

Attention runs between two of these functions, not inside them, so that each is one graph with one dynamic size
(the tokens of a pack) and no data-dependent shape. torch.compile then fuses norms, rotations, activations and residual
sums, saves only tensors that are expensive to recompute, and compiles each function once for all layers.

Shape letters: T tokens (or patches) of a pack, D width, H heads, K key heads, E values per head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from vidqa.engine.kernels.plain import vision_heads
from vidqa.engine.model.layers import (
    Norm,
    Projection,
    is_plain,
    linear_gelu,
    normed,
    project,
    root_mean_square_norm,
    rotate,
)

ALIGNED = 16  # elements: row lengths are multiples, since matrix products read 8 at a time in bf16, 16 in 8-bit floats


class DecoderInput(NamedTuple):
    norm: Norm
    query: Projection
    key: Projection
    value: Projection
    width: int  # of a head
    query_norm: Norm | None
    key_norm: Norm | None


def before_decoder_attention(
    hidden_TD: torch.Tensor, cos_TE: torch.Tensor, sin_TE: torch.Tensor, weights: DecoderInput
):
    """Query [T, H, E], key and value [T, K, E], after rotation and, if the family has them, head norms."""
    products = project(root_mean_square_norm(hidden_TD, weights.norm), weights.query, weights.key, weights.value)
    query, key, value = (part.unflatten(-1, (-1, weights.width)) for part in products)
    query = query if weights.query_norm is None else root_mean_square_norm(query, weights.query_norm)
    key = key if weights.key_norm is None else root_mean_square_norm(key, weights.key_norm)
    return rotate(query, cos_TE, sin_TE), rotate(key, cos_TE, sin_TE), value


class DecoderOutput(NamedTuple):
    output: Projection
    norm: Norm
    gate: Projection
    up: Projection
    down: Projection


def after_decoder_attention(
    hidden_TD: torch.Tensor, attended_TD: torch.Tensor, weights: DecoderOutput, *, plainly: bool = False
) -> torch.Tensor:
    """The layer's output from its input and the attention output."""
    hidden_TD = hidden_TD + project(attended_TD, weights.output, plainly=plainly)[0]
    gate, up = project(root_mean_square_norm(hidden_TD, weights.norm), weights.gate, weights.up, plainly=plainly)
    return hidden_TD + project(F.silu(gate) * up, weights.down, plainly=plainly)[0]


class VisionInput(NamedTuple):
    norm: Norm
    query_key_value: Projection
    heads: int


def before_vision_attention(hidden_TD: torch.Tensor, cos_TE: torch.Tensor, sin_TE: torch.Tensor, weights: VisionInput):
    """Query, key and value [T, H, E]; rotated in float32, as transformers does for the vision tower."""
    packed = project(normed(hidden_TD, weights.norm), weights.query_key_value)[0]
    return vision_heads(packed, weights.heads, cos_TE, sin_TE)


class VisionOutput(NamedTuple):
    """Weights of a vision block after attention. `gate` is that of a gated MLP; an MLP without it uses GELU."""

    output: Projection
    norm: Norm
    wide: Projection
    narrow: Projection
    gate: Projection | None = None


def aligned(gate: Projection, wide: Projection, narrow: Projection) -> tuple[Projection, Projection, Projection]:
    """The same gated MLP with its inner width zero-padded to a multiple of ALIGNED. Matrix products in bf16 read 16
    bytes at a time: with the inner width 3,420 of Qwen2.5-VL a block takes 1.5 times as long, or twice as long if it
    is not compiled."""
    more = -len(wide.weight) % ALIGNED
    return (_longer(gate, more), _longer(wide, more), _wider(narrow, more)) if more else (gate, wide, narrow)


def _longer(layer: Projection, more: int) -> Projection:
    """Append `more` outputs, which are zero."""
    weight, bias, adapter = F.pad(layer.weight, (0, 0, 0, more)), layer.bias, layer.adapter
    return layer._replace(
        weight=weight,
        bias=None if bias is None else F.pad(bias, (0, more)),
        adapter=adapter and adapter._replace(up=F.pad(adapter.up, (0, 0, 0, more))),
    )


def _wider(layer: Projection, more: int) -> Projection:
    """Append `more` inputs, whose weights are zero."""
    adapter = layer.adapter and layer.adapter._replace(down=F.pad(layer.adapter.down, (0, more)))
    return layer._replace(weight=F.pad(layer.weight, (0, more)), adapter=adapter)


def after_vision_attention(
    hidden_TD: torch.Tensor, attended_TD: torch.Tensor, weights: VisionOutput, *, plainly: bool = False
) -> torch.Tensor:
    hidden_TD = hidden_TD + project(attended_TD, weights.output, plainly=plainly)[0]
    inside, narrow = normed(hidden_TD, weights.norm), weights.narrow
    if weights.gate is not None:
        *inner, narrow = aligned(weights.gate, weights.wide, weights.narrow)
        gate, up = project(inside, *inner, plainly=plainly)
        wide = F.silu(gate) * up
    elif hidden_TD.is_cuda and not torch.is_grad_enabled() and is_plain(weights.wide):
        wide = linear_gelu(inside, weights.wide.weight, weights.wide.bias)
    else:
        wide = F.gelu(project(inside, weights.wide, plainly=plainly)[0], approximate="tanh")
    return hidden_TD + project(wide, narrow, plainly=plainly)[0]


def after_decoder_attention_recomputed(
    hidden_TD: torch.Tensor, attended_TD: torch.Tensor, weights: DecoderOutput
) -> Any:
    """`after_decoder_attention` with its activations recomputed in backward: only the inputs are saved."""
    return checkpoint(after_decoder_attention, hidden_TD, attended_TD, weights, plainly=True, use_reentrant=False)


def after_vision_attention_recomputed(hidden_TD: torch.Tensor, attended_TD: torch.Tensor, weights: VisionOutput) -> Any:
    return checkpoint(after_vision_attention, hidden_TD, attended_TD, weights, plainly=True, use_reentrant=False)


class Dense(NamedTuple):
    """The functions of a layer, eager or compiled. Those ending in `again` are recomputed in backward; compiled, the
    recomputation omits results that no gradient needs."""

    before_decoder: Callable[..., Any] = before_decoder_attention
    after_decoder: Callable[..., Any] = after_decoder_attention
    before_vision: Callable[..., Any] = before_vision_attention
    after_vision: Callable[..., Any] = after_vision_attention
    after_decoder_again: Callable[..., Any] = after_decoder_attention_recomputed
    after_vision_again: Callable[..., Any] = after_vision_attention_recomputed


EAGER = Dense()


@cache
def compiled() -> Dense:
    """The functions of `EAGER` under torch.compile: one graph each, for any number of tokens."""
    from vidqa.engine.torch_private import any_length, prepare_compiler  # the compiler takes seconds to import

    prepare_compiler()
    return Dense(*(any_length(torch.compile(function, fullgraph=True)) for function in EAGER))
