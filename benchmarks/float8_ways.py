"""Ways of multiplying in 8-bit floats, to choose one by float8_layers.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

INPUT, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2


class Way(NamedTuple):
    together: bool = True  # one product for all layers that share an input
    turn: str = "triton"  # who writes columns: "triton" or "torch"
    keep: bool = False  # columns of inputs are written in forward and kept
    fast: tuple[bool, bool, bool] = (True, True, True)  # accumulation of output, input gradient, weight gradient
    wgrad8: bool = True
    checked: bool = False  # the compiler is told that rows are a multiple of 64
    by_rows: bool = True  # the largest number of each row first
    gradient: str = "e5m2"


def scale_of(parts: Sequence[torch.Tensor], kind: torch.dtype, by_rows: bool) -> torch.Tensor:
    most = [(part.abs().amax(-1).amax() if by_rows else part.abs().amax()).float() for part in parts]
    largest = most[0]
    for each in most[1:]:
        largest = torch.maximum(largest, each)
    return torch.finfo(kind).max / largest.clamp(min=1e-12)


def rounded(part: torch.Tensor, scale: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return (part.float() * scale).to(kind)


@torch.library.custom_op("trial::columns", mutates_args=())
def columns(parts: list[torch.Tensor], scale: torch.Tensor, kind: torch.dtype, side: bool) -> torch.Tensor:
    """`side`: parts lie side by side [M, N1 + N2], else one below the other."""
    return _cast(parts, scale, kind, side, False)[0]


@columns.register_fake
def _(parts, scale, kind, side):
    return parts[0].new_empty(_shape(parts, side)[::-1], dtype=kind)


@torch.library.custom_op("trial::both", mutates_args=())
def both(
    parts: list[torch.Tensor], scale: torch.Tensor, kind: torch.dtype, side: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return _cast(parts, scale, kind, side, True)


@both.register_fake
def _(parts, scale, kind, side):
    shape = _shape(parts, side)
    return parts[0].new_empty(shape[::-1], dtype=kind), parts[0].new_empty(shape, dtype=kind)


def _shape(parts, side):
    if side:
        return [parts[0].shape[0], sum(part.shape[1] for part in parts)]
    return [sum(part.shape[0] for part in parts), parts[0].shape[1]]


def _cast(parts, scale, kind, side, with_rows):
    shape = _shape(parts, side)
    turned = parts[0].new_empty(shape[::-1], dtype=kind)
    rows = parts[0].new_empty(shape if with_rows else [0, 0], dtype=kind)
    at = 0
    for part in parts:
        length = part.shape[1] if side else part.shape[0]
        to_turned = turned[at : at + length] if side else turned[:, at : at + length]
        to_rows = None
        if with_rows:
            to_rows = rows[:, at : at + length] if side else rows[at : at + length]
        if part.is_cuda:
            from vidqa.engine.kernels.casting import cast

            cast(part, scale, to_turned, to_rows)
        else:
            found = rounded(part, scale, kind)
            to_turned.copy_(found.t())
            if to_rows is not None:
                to_rows.copy_(found)
        at += length
    return turned, rows


def _rows(parts, scale, kind, side):
    found = [rounded(part, scale, kind) for part in parts]
    return found[0] if len(found) == 1 else torch.cat(found, dim=1 if side else 0)


def _columns(way, parts, scale, kind, side):
    if way.turn == "triton":
        return columns(list(parts), scale, kind, side)
    found = [rounded(part, scale, kind).t() for part in parts]
    return found[0].contiguous() if len(found) == 1 else torch.cat(found, dim=0 if side else 1).contiguous()


def multiply(left, right, scales, dtype, fast):
    """left [M, K] and right [N, K]: [M, N]."""
    one, other = (scale.reciprocal() for scale in scales)
    return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=other, out_dtype=dtype, use_fast_accum=fast)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: Way, hidden: torch.Tensor, *weights: torch.Tensor):
        x_scale = scale_of([hidden], INPUT, way.by_rows)
        w_scale = scale_of(weights, INPUT, way.by_rows)
        if way.keep:
            turned, x = both([hidden], x_scale, INPUT, True)
        else:
            x = _rows([hidden], x_scale, INPUT, True)
        w = _rows(weights, w_scale, INPUT, False)
        product = multiply(x, w, (x_scale, w_scale), hidden.dtype, way.fast[0])
        ctx.save_for_backward(turned if way.keep else hidden, x_scale, w_scale, *weights)
        ctx.way = way
        return tuple(product.split([len(weight) for weight in weights], dim=1))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor):
        way = ctx.way
        kept, x_scale, w_scale, *weights = ctx.saved_tensors
        kind = GRADIENT if way.gradient == "e5m2" else INPUT
        g_scale = scale_of(gradients, kind, way.by_rows)
        if way.turn == "triton" and way.wgrad8:
            g_columns, g_rows = both(list(gradients), g_scale, kind, True)
        else:
            g_rows = _rows(gradients, g_scale, kind, True)
            g_columns = _columns(way, gradients, g_scale, kind, True) if way.wgrad8 else None
        w_columns = _columns(way, weights, w_scale, INPUT, False)
        dtype = gradients[0].dtype
        to_hidden = multiply(g_rows, w_columns, (g_scale, w_scale), dtype, way.fast[1])
        if way.wgrad8:
            x_columns = kept if way.keep else _columns(way, [kept], x_scale, INPUT, True)
            joined = multiply(g_columns, x_columns, (g_scale, x_scale), dtype, way.fast[2])
            to_weights = joined.split([len(weight) for weight in weights])
        else:
            to_weights = [gradient.t() @ kept for gradient in gradients]
        return None, to_hidden, *to_weights


def products(way: Way, hidden: torch.Tensor, weights, biases):
    if way.checked:
        torch._check(hidden.shape[0] % 64 == 0)
    if way.together:
        found = _Products.apply(way, hidden, *weights)
    else:
        found = [_Products.apply(way, hidden, weight)[0] for weight in weights]
    return tuple(each if bias is None else each + bias for each, bias in zip(found, biases, strict=True))


def plain(hidden, weights, biases):
    return tuple(F.linear(hidden, weight, bias) for weight, bias in zip(weights, biases, strict=True))
