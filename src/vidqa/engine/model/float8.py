"""Matrix products of layers in 8-bit floats during training. Weights, gradients, optimizer and saved files keep their
precision.

A factor is multiplied by a scale that maps its largest value to the largest value of the 8-bit format, and rounded; the
product of two factors is divided by both scales. With "tensorwise" a factor has one scale, and layers
that share an input are one product with one scale for their weights and one for their gradients; with "rowwise" every
row that is summed over has its own. Inputs and weights are E4M3, gradients E5M2 (E4M3 if rows have scales: no kernel
supports another format).

Memory traffic can consume the gain, so that the rest is designed to save it. Kernels sum over dimensions that
are contiguous in memory, and backward sums over rows, so every factor is needed transposed, too: one kernel
writes both orders if both are needed. The largest value is computed by rows first, which the compiler fuses into
the norm or activation before. Scales of forward are saved for backward, 8-bit values are not. Kernels sum only
over a multiple of 16 elements: tokens or patches are padded with zeros.

Shape letters: T tokens of a pack, D width, O outputs, M rows and N columns of any matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vidqa.engine.torch_private import scaled_mm

FLOAT8 = "float8"  # the attribute of a linear layer with the granularity of its scales in training
NARROW, WIDE = torch.float8_e4m3fn, torch.float8_e5m2  # more digits; more range
LEAST = 1e-12  # minimum of a factor's largest value, for all-zero factors
SUMMED = 16  # kernels sum over a multiple of this number of elements


def use_float8(layers: Iterable[nn.Module], granularity: str) -> None:
    """Let the linear layers in those of `layers` that train multiply in fp8 during training; "rowwise" or
    "tensorwise"."""
    for layer in layers:
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            continue
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                setattr(module, FLOAT8, granularity)


def products(hidden_TD: torch.Tensor, weights: Sequence[torch.Tensor], granularity: str) -> tuple[torch.Tensor, ...]:
    """The products [T, O], multiplied in fp8, with weights [O, D] of layers that share an input. D and O are multiples
    of 16."""
    if hidden_TD.shape[0] == 0:  # a rank's pack without a sample
        return tuple(F.linear(hidden_TD, weight) for weight in weights)
    if granularity == "rowwise":
        return tuple(_ByRows.apply(hidden_TD, weight) for weight in weights)
    return _FusedProducts.apply(hidden_TD, *weights)


class _FusedProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`inputs` are hidden states and weights."""
        hidden_TD, *weights = inputs
        scale, weight_scale = _scale([hidden_TD], NARROW), _scale(weights, NARROW)
        weight_OD = torch.cat([_rounded(weight, weight_scale, NARROW) for weight in weights])
        ctx.save_for_backward(hidden_TD, scale, weight_scale, *weights)
        product = _multiplied(_rounded(hidden_TD, scale, NARROW), weight_OD, scale, weight_scale, hidden_TD.dtype)
        return product.split([len(weight) for weight in weights], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        hidden_TD, scale, weight_scale, *weights = ctx.saved_tensors
        gradient_scale = _scale(gradients, WIDE)
        gradient_TO, gradient_OT = both_ways(list(gradients), gradient_scale)
        weight_DO = turned(list(weights), weight_scale, gradient_scale)
        to_hidden = _multiplied(gradient_TO, weight_DO, gradient_scale, weight_scale, hidden_TD.dtype)
        hidden_DT = turned([hidden_TD], scale, gradient_scale)
        to_weights = _multiplied(gradient_OT, hidden_DT, gradient_scale, scale, hidden_TD.dtype)
        return to_hidden, *to_weights.split([len(weight) for weight in weights])


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: torch.Tensor, weight_OD: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden_TD, weight_OD)
        return _product_by_rows(hidden_TD, weight_OD)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        hidden_TD, weight_OD = ctx.saved_tensors
        (gradient_TO,) = gradients
        to_hidden = _product_by_rows(gradient_TO, weight_OD.t())
        more = _filled(hidden_TD.shape[0]) - hidden_TD.shape[0]
        gradient_OT, hidden_DT = (F.pad(factor.t(), (0, more)) for factor in (gradient_TO, hidden_TD))
        return to_hidden, _product_by_rows(gradient_OT, hidden_DT)


def _product_by_rows(left_MN: torch.Tensor, right_ON: torch.Tensor) -> torch.Tensor:
    """Compute `left right'` with a scale for each row of both: [M, O]."""
    scales = [_bounded(factor.abs().amax(1, keepdim=True), NARROW) for factor in (left_MN, right_ON)]
    left, right = (
        _rounded(factor, scale, NARROW).contiguous() for factor, scale in zip((left_MN, right_ON), scales, strict=True)
    )
    # CUDA kernels give at most bfloat16 here. `to` only if it changes the dtype: with one that does nothing at the end
    # of an autograd function, torch 2.11 compiles gradients that are zero.
    product_MO = _multiplied(left, right, scales[0], scales[1].t(), torch.bfloat16)
    return product_MO if product_MO.dtype == left_MN.dtype else product_MO.to(left_MN.dtype)


def _filled(length: int) -> int:
    """The next multiple of SUMMED."""
    return (length + SUMMED - 1) // SUMMED * SUMMED


def _scale(parts: Iterable[torch.Tensor], kind: torch.dtype) -> torch.Tensor:
    """One scale for all values of all parts."""
    return _bounded(torch.stack([part.abs().amax(1).amax() for part in parts]).amax(), kind)


def _bounded(largest: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return torch.finfo(kind).max / largest.float().clamp(min=LEAST)


def _rounded(factor: torch.Tensor, scale: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return (factor.float() * scale).to(kind)


def _multiplied(
    left_MN: torch.Tensor, right_ON: torch.Tensor, scale: torch.Tensor, other: torch.Tensor, kind: torch.dtype
) -> torch.Tensor:
    """Compute `left right'` divided by the scales of its factors: [M, O]."""
    return scaled_mm(
        left_MN,
        right_ON.t(),
        scale_a=scale.reciprocal(),
        scale_b=other.reciprocal(),
        out_dtype=kind,
        use_fast_accum=True,  # more exact sums change gradients by less than the 8-bit rounding, for 3 % of a layer
    )


@torch.library.custom_op("vidqa::turned", mutates_args=())
def turned(parts: list[torch.Tensor], scale: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Stack matrices [M, N], rounded to E4M3 and transposed: [N, sum of M], zero-padded to a multiple of SUMMED.
    `after` is not read: the dependency on a gradient keeps this in backward, whereas the compiler would otherwise
    compute it in forward and save the result."""
    heights = [len(part) for part in parts]
    heights[-1] += -sum(heights) % SUMMED
    columns_NM = parts[0].new_empty((parts[0].shape[1], sum(heights)), dtype=NARROW)
    for part, columns in zip(parts, columns_NM.split(heights, dim=1), strict=True):
        _cast(part, scale, columns, None)
    return columns_NM


@turned.register_fake
def _(parts: list[torch.Tensor], scale: torch.Tensor, after: torch.Tensor) -> Any:
    # Not `len`, which makes a dynamic length a constant: each new one would be compiled again.
    return parts[0].new_empty((parts[0].shape[1], _filled(sum(part.shape[0] for part in parts))), dtype=NARROW)


@torch.library.custom_op("vidqa::both_ways", mutates_args=())
def both_ways(parts: list[torch.Tensor], scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Concatenate matrices [M, N], rounded to E5M2: [M, sum of N], and transposed: [sum of N, M], zero-padded to a
    multiple of SUMMED."""
    widths = [part.shape[1] for part in parts]
    rows_MN = parts[0].new_empty((len(parts[0]), sum(widths)), dtype=WIDE)
    columns_NM = parts[0].new_empty((sum(widths), _filled(len(parts[0]))), dtype=WIDE)
    for part, rows, columns in zip(parts, rows_MN.split(widths, dim=1), columns_NM.split(widths), strict=True):
        _cast(part, scale, columns, rows)
    return rows_MN, columns_NM


@both_ways.register_fake
def _(parts: list[torch.Tensor], scale: torch.Tensor) -> Any:
    height, width = parts[0].shape[0], sum(part.shape[1] for part in parts)
    return parts[0].new_empty((height, width), dtype=WIDE), parts[0].new_empty((width, _filled(height)), dtype=WIDE)


def _cast(source_MN: torch.Tensor, scale: torch.Tensor, columns_NM: torch.Tensor, rows_MN: torch.Tensor | None) -> None:
    if source_MN.is_cuda:
        from vidqa.engine.kernels.float8 import cast  # Triton

        cast(source_MN, scale, columns_NM, rows_MN)
        return
    rounded = _rounded(source_MN, scale, columns_NM.dtype)
    columns_NM[:, : len(rounded)] = rounded.t()
    columns_NM[:, len(rounded) :] = 0
    if rows_MN is not None:
        rows_MN.copy_(rounded)
