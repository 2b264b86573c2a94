"""Projections with LoRA adapters, norms and rotations for all families, as plain functions of tensors.

Weights are arguments, not modules, so that torch.compile makes one graph of a function for all layers.

A layer and its adapter are one matrix product. The output of an adapter has the size of a layer's output. Computed by
a separate product it is read again to be added, and in backward every gradient is read once for the layer and once for
its adapter. Here the input is extended by the product with the adapters' down matrix, and the weight by the up matrix:
[x, x down'] [W, up]'. That is the same sum, with parts added before rounding. A step without dropout is
2 % faster.

Shape letters: T tokens (or patches) of a pack, D width, O width of an output, R width by which the input is extended,
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

# R is a multiple of this tile of matrix products, and more than the sum of ranks, so that a compiler finds it cheaper
# to save weights, which exist anyway, than the matrices computed from them.
AT_A_TIME = 64


class Adapter(NamedTuple):
    """LoRA's two matrices of one projection: output += up(down(dropout(input))) * scale, a number or float32 []."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float | torch.Tensor
    dropout: float


class Projection(NamedTuple):
    """The weights of one linear layer; for a quantized layer, the parts of its weight."""

    weight: Any  # torch.Tensor, or Parts if it is quantized
    bias: torch.Tensor | None
    adapter: Adapter | None
    float8: str | None = None  # granularity of the scales if it multiplies in 8-bit floats


class Norm(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor | None
    epsilon: float


def is_plain(layer: Projection) -> bool:
    """Whether a layer is one product and one bias."""
    return layer.adapter is None and layer.float8 is None and layer.bias is not None


# Opaque to torch.compile: GELU in the epilogue of the product saves a frozen tower writing and reading its widest
# tensor, half a percent of a step with LoRA.
@torch.library.custom_op("vidqa::linear_gelu", mutates_args=())
def linear_gelu(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU (tanh approximation) of a linear layer's output, for CUDA; saves nothing for backward."""
    return addmm_activation(bias, hidden, weight.t(), use_gelu=True)


@linear_gelu.register_fake
def _(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return hidden.new_empty((hidden.shape[0], weight.shape[0]))


def active(module: Any) -> Any:
    """The module that computes: for PEFT's wrapper of a copy that trains in full, that copy."""
    chosen = getattr(module, "modules_to_save", None)
    return module if chosen is None else chosen[module.active_adapter]


def projection(module: Any) -> Projection:
    """The current weights of a linear layer, with or without a LoRA adapter (FSDP swaps them)."""
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
    """A number as a tensor for compiled functions: each constant would get a graph with kernels of its own, and those
    of GRPO's reference (scale 0) would replace the policy's."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=torch.float32, device=device)


def flattened(kernel: Projection) -> Projection:
    """A convolution with equal stride and kernel as a linear layer: its matrices flattened to two dimensions."""
    adapter = kernel.adapter
    if adapter is not None:
        adapter = adapter._replace(down=adapter.down.flatten(1), up=adapter.up.flatten(1))
    return kernel._replace(weight=kernel.weight.flatten(1), adapter=adapter)


def norm(module: Any) -> Norm:
    module = active(module)
    epsilon = module.eps if isinstance(module, nn.LayerNorm) else module.variance_epsilon
    return Norm(module.weight, getattr(module, "bias", None), epsilon)


def project(hidden_TD: torch.Tensor, *layers: Projection, plainly: bool = False) -> tuple[torch.Tensor, ...]:
    """The outputs of linear layers that share an input; without dropout their adapters read it once for all. With
    `plainly` an adapter is two separate products, which torch.compile can recompute."""
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
    """Give a quantized layer without an adapter one of rank 0: its product then saves no dequantized weight."""
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
    """A contiguous copy: a slice that is saved for backward would keep the whole tensor in memory. The operation is
    opaque to torch.compile, which would drop a `clone`."""
    return part.clone(memory_format=torch.contiguous_format)


@own.register_fake
def _(part: torch.Tensor) -> Any:
    return torch.empty_like(part, memory_format=torch.contiguous_format)


def adapted(
    hidden_TD: torch.Tensor, weights: Sequence[torch.Tensor | Parts], adapters: Sequence[Adapter]
) -> tuple[torch.Tensor, ...]:
    """The products [T, O] of an input with frozen weights [O, D], all ordinary or all quantized, each with its layer's
    adapter."""
    downs = [adapter.down.to(hidden_TD.dtype) for adapter in adapters]
    ups = [(adapter.up * adapter.scale).to(hidden_TD.dtype) for adapter in adapters]
    ranks = sum(map(len, downs))
    more = _width(ranks) - ranks
    parts = [weight if isinstance(weight, tuple) else (weight,) for weight in weights]
    counts, matrices = (len(ups), len(parts[0])), (*chain.from_iterable(parts), *ups)
    if not any(adapter.dropout for adapter in adapters):
        return _Adapted.apply(hidden_TD, F.pad(torch.cat(downs), (0, 0, 0, more)), None, counts, *matrices)
    dropped = (F.dropout(hidden_TD, adapter.dropout) for adapter in adapters)  # a separate mask for each
    narrow = [F.linear(part, down) for part, down in zip(dropped, downs, strict=True)]
    return _Adapted.apply(hidden_TD, None, F.pad(torch.cat(narrow, dim=1), (0, more)), counts, *matrices)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """`inputs` are hidden states, the down matrices of all adapters [R, D] or their products [T, R], the numbers of
        layers and of parts of a weight, these parts, and up matrices."""
        hidden_TD, down_RD, narrow_TR, ctx.counts, *matrices = inputs
        weights, ups = _grouped(matrices, *ctx.counts)
        narrow_TR = F.linear(hidden_TD, down_RD) if narrow_TR is None else narrow_TR
        used = own(narrow_TR[:, : sum(up.shape[1] for up in ups)])  # a slice of `longer` would keep all of it
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
        # Opposite order to forward: a compiler that found the same matrix in both would save it for backward.
        whole = (dense(weight, output_gradients[0]) for weight in weights)
        joined = (torch.cat(pair, dim=1) for pair in zip(spread, whole, strict=True))
        products = [gradient @ weight for gradient, weight in zip(output_gradients, joined, strict=True)]
        to_narrow, to_hidden = sum(products[1:], products[0]).split([spread[0].shape[1], ctx.width], dim=1)
        parts = used.split([up.shape[1] for up in ups], dim=1)
        to_ups = [gradient.t() @ part for gradient, part in zip(output_gradients, parts, strict=True)]
        frozen = [None] * (ctx.counts[0] * ctx.counts[1])
        if down_RD is None:
            return to_hidden, None, to_narrow, None, *frozen, *to_ups
        # Added in float32, so that a compiler fuses the sum with its consumer: it turns a sum of two products in one
        # precision into a product that first copies its output.
        to_hidden = (to_hidden + (to_narrow @ down_RD).float()).to(used.dtype)
        return to_hidden, to_narrow.t() @ hidden_TD, None, None, *frozen, *to_ups


def _grouped(
    matrices: Sequence[torch.Tensor], layers: int, parts: int
) -> tuple[list[torch.Tensor | Parts], Sequence[torch.Tensor]]:
    """Weights, each one tensor or the parts of a quantized one, and up matrices."""
    groups = [tuple(matrices[at * parts : (at + 1) * parts]) for at in range(layers)]
    return [group if parts > 1 else group[0] for group in groups], matrices[layers * parts :]


def _spread(ups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Pad each matrix with zeros in the columns of the other layers' adapters: [O, R]."""
    *starts, ranks = accumulate((up.shape[1] for up in ups), initial=0)
    width = _width(ranks)
    return [F.pad(up, (start, width - start - up.shape[1])) for start, up in zip(starts, ups, strict=True)]


def _width(ranks: int) -> int:
    """R for a sum of ranks."""
    return ranks + AT_A_TIME - ranks % AT_A_TIME


def root_mean_square_norm(hidden: torch.Tensor, weights: Norm) -> torch.Tensor:
    """Root mean square norm in float32, multiplied by the weight in the input's precision, as in transformers."""
    wide = hidden.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + weights.epsilon)
    return weights.weight * scaled.to(hidden.dtype)


def layer_norm(hidden: torch.Tensor, weights: Norm) -> torch.Tensor:
    return F.layer_norm(hidden, hidden.shape[-1:], weights.weight, weights.bias, weights.epsilon)


def normed(hidden: torch.Tensor, weights: Norm) -> torch.Tensor:
    """Apply the norm of these weights: layer norm with a bias, root mean square norm without."""
    return root_mean_square_norm(hidden, weights) if weights.bias is None else layer_norm(hidden, weights)


def rotate(heads_THE: torch.Tensor, cos_TE: torch.Tensor, sin_TE: torch.Tensor) -> torch.Tensor:
    """Apply rotary embedding; the two halves of a head rotate against each other."""
    first, second = heads_THE.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return heads_THE * cos_TE[:, None] + turned * sin_TE[:, None]
