"""Projections with their LoRA adapters, norms and rotations of every family's layers, as plain functions of tensors.

Weights are arguments and not modules, so that torch.compile makes one graph of a function for all layers.

A layer and its adapter are one matrix product. What adapters give has the size of a layer's output. Written by a
product of its own it is read again to be added, and in backward every gradient is read once for the layer and once for
its adapter. Here the input is made longer by what the adapters bring down, and the weight by their other matrix:
[x, x down'] [W, up]'. That is the same sum, whose parts are added before they are rounded. A step without dropout is
2 % faster for it.

Shape letters: T tokens (or patches) of a pack, D width, O width of an output, R width that the input is made longer by,
H heads, E values per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from vidqa.engine.model.float8 import FLOAT8, products
from vidqa.engine.model.quantized_base import Parts, dense
from vidqa.engine.torch_private import addmm_activation

# Numbers that a matrix product takes at a time: R is a multiple of it. And R is more than the sum of ranks, so that a
# compiler finds it cheaper to keep weights, which are there anyway, than what is made of them.
AT_A_TIME = 64


class Adapter(NamedTuple):
    """LoRA's two matrices of one projection: output += up(down(dropout(input))) * scale, a number or float32 []."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float | torch.Tensor
    dropout: float


class Projection(NamedTuple):
    """The weights of one linear layer; of a quantized one, the parts of its weight."""

    weight: Any  # torch.Tensor, or Parts where it is quantized
    bias: torch.Tensor | None
    adapter: Adapter | None
    float8: str | None = None  # how its factors are scaled where it multiplies in 8-bit floats


class Norm(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor | None
    epsilon: float


def is_plain(layer: Projection) -> bool:
    """Whether a layer is one product and one bias."""
    return layer.adapter is None and layer.float8 is None and layer.bias is not None


# torch.compile leaves it whole: GELU in the product before it saves a frozen tower writing and reading its widest
# tensor, half a percent of a step with LoRA.
@torch.library.custom_op("vidqa::linear_gelu", mutates_args=())
def linear_gelu(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU (its tanh form) of a linear layer's output, for CUDA; nothing is kept for backward."""
    return addmm_activation(bias, hidden, weight.t(), use_gelu=True)


@linear_gelu.register_fake
def _(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return hidden.new_empty((hidden.shape[0], weight.shape[0]))


def active(module: Any) -> Any:
    """The module that computes: PEFT's wrapper of a copy that trains in full gives that copy."""
    chosen = getattr(module, "modules_to_save", None)
    return module if chosen is None else chosen[module.active_adapter]


def projection(module: Any) -> Projection:
    """The weights of a linear layer, with or without a LoRA adapter on it, as they are now (FSDP swaps them)."""
    module = active(module)
    base = getattr(module, "base_layer", module)
    if base is module:
        return Projection(base.weight, base.bias, None, getattr(base, FLOAT8, None) if base.training else None)
    name = module.active_adapters[0]
    dropout = module.lora_dropout[name]
    share = dropout.p if isinstance(dropout, nn.Dropout) and module.training else 0.0
    up = module.lora_B[name].weight
    adapter = Adapter(module.lora_A[name].weight, up, _scale(module.scaling[name], up.device), share)
    return Projection(base.weight, base.bias, adapter)


@cache
def _scale(value: float, device: torch.device) -> torch.Tensor:
    """A number for compiled functions: as a tensor, since one graph for each value has kernels of its own, and those of
    GRPO's reference (scale 0) would take the place of the policy's."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=torch.float32, device=device)


def flattened(kernel: Projection) -> Projection:
    """A convolution whose stride is its kernel as the linear layer that it is: matrices with one column a value."""
    adapter = kernel.adapter
    if adapter is not None:
        adapter = adapter._replace(down=adapter.down.flatten(1), up=adapter.up.flatten(1))
    return kernel._replace(weight=kernel.weight.flatten(1), adapter=adapter)


def norm(module: Any) -> Norm:
    module = active(module)
    epsilon = module.eps if isinstance(module, nn.LayerNorm) else module.variance_epsilon
    return Norm(module.weight, getattr(module, "bias", None), epsilon)


def project(hidden_TD: torch.Tensor, *layers: Projection, plainly: bool = False) -> tuple[torch.Tensor, ...]:
    """The outputs of linear layers that share an input; without dropout their adapters read it once for all. `plainly`
    makes an adapter two products of their own, which torch.compile recomputes where it is told to."""
    if (how := layers[0].float8) is not None:
        products_TO = products(hidden_TD, [layer.weight for layer in layers], how)
        return tuple(_biased(output, layer.bias) for output, layer in zip(products_TO, layers, strict=True))
    if plainly:
        return tuple(_plain_product(hidden_TD, layer) for layer in layers)
    layers = tuple(_with_adapter(layer, hidden_TD) for layer in layers)
    adapters = [layer.adapter for layer in layers if layer.adapter]
    weights = [layer.weight for layer in layers if layer.adapter]
    outputs = iter(adapted(hidden_TD, weights, adapters) if adapters else ())
    return tuple(
        _biased(next(outputs), layer.bias) if layer.adapter else F.linear(hidden_TD, layer.weight, layer.bias)
        for layer in layers
    )


def _with_adapter(layer: Projection, hidden_TD: torch.Tensor) -> Projection:
    """A quantized layer without an adapter gets one of rank 0: its product then keeps no dequantized weight."""
    if layer.adapter is not None or not isinstance(layer.weight, tuple):
        return layer
    down, up = hidden_TD.new_empty(0, hidden_TD.shape[1]), hidden_TD.new_empty(layer.weight[0].shape[0], 0)
    return layer._replace(adapter=Adapter(down, up, 1.0, 0.0))


def _plain_product(hidden_TD: torch.Tensor, layer: Projection) -> torch.Tensor:
    weight = dense(layer.weight, hidden_TD.detach())
    if (adapter := layer.adapter) is None:
        return F.linear(hidden_TD, weight, layer.bias)
    narrow_TR = F.linear(F.dropout(hidden_TD, adapter.dropout), adapter.down.to(hidden_TD.dtype))
    more = F.linear(narrow_TR, (adapter.up * adapter.scale).to(hidden_TD.dtype))
    return _biased(F.linear(hidden_TD, weight) + more, layer.bias)


def _biased(product_TD: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return product_TD if bias is None else product_TD + bias


@torch.library.custom_op("vidqa::own", mutates_args=())
def own(part: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own: a part of a tensor that is kept for backward would keep the whole tensor. It is an
    operation that torch.compile leaves alone; a `clone` it would drop."""
    return part.clone(memory_format=torch.contiguous_format)


@own.register_fake
def _(part: torch.Tensor) -> Any:
    return torch.empty_like(part, memory_format=torch.contiguous_format)


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


def root_mean_square_norm(hidden: torch.Tensor, weights: Norm) -> torch.Tensor:
    """In float32, the product with the weight in the input's precision, as transformers does."""
    wide = hidden.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + weights.epsilon)
    return weights.weight * scaled.to(hidden.dtype)


def layer_norm(hidden: torch.Tensor, weights: Norm) -> torch.Tensor:
    return F.layer_norm(hidden, hidden.shape[-1:], weights.weight, weights.bias, weights.epsilon)


def normed(hidden: torch.Tensor, weights: Norm) -> torch.Tensor:
    """By the norm that these weights are of: a root mean square norm has no bias."""
    return root_mean_square_norm(hidden, weights) if weights.bias is None else layer_norm(hidden, weights)


def rotate(heads_THE: torch.Tensor, cos_TE: torch.Tensor, sin_TE: torch.Tensor) -> torch.Tensor:
    """Rotary embedding; halves of a head turn against each other."""
    first, second = heads_THE.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return heads_THE * cos_TE[:, None] + turned * sin_TE[:, None]
