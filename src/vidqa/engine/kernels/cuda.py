"""Triton kernels for generation: the operations between a layer's matrix products, and attention of one new token.

A decode step reads every weight and the whole cache once; the rest of its time is launches. Each of these kernels is
one launch instead of five to ten. They round like transformers' own layers. `plain` has the same
functions in plain PyTorch.

Shape letters: B rows, T tokens, D width, H query heads, K key heads, E values per head, S splits of a context.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidqa.engine.kernels.float8 import float8_product, rounded_like, rounded_rows, store_rounded
from vidqa.engine.kernels.int4 import int4_product, pack_int4
from vidqa.engine.model.layers import Norm
from vidqa.engine.model.quantized import InputQuantization, QuantizedInput

__all__ = [
    "add_norm",
    "decode_attention",
    "float8_product",
    "int4_product",
    "pack_int4",
    "quantize_rows",
    "rotate_into",
    "rotated",
    "silu_mul",
]

SPLIT_BLOCK = 64  # keys of one step of attention; the page size of the cache is a multiple of it
SPLITS = 8  # parts of a context over which attention is computed in parallel


@triton.jit
def _norm_kernel(
    hidden, delta, total, weight, out, steps, static, width, epsilon,
    HAS_DELTA: tl.constexpr, ROUND: tl.constexpr, STATIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(hidden + row + at, mask=inside, other=0.0)
    kind = x.dtype
    if HAS_DELTA:
        x = (x.to(tl.float32) + tl.load(delta + row + at, mask=inside, other=0.0).to(tl.float32)).to(kind)
        tl.store(total + row + at, x, mask=inside)
    wide = x.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    w = tl.load(weight + at, mask=inside, other=0.0)
    normed = (w.to(tl.float32) * scaled.to(kind).to(tl.float32)).to(kind)
    if ROUND:
        store_rounded(normed.to(tl.float32), inside, out, row + at, steps, tl.program_id(0), static, STATIC)
    else:
        tl.store(out + row + at, normed, mask=inside)


def add_norm(
    hidden_TD: torch.Tensor,
    delta_TD: torch.Tensor | None,
    norm: Norm,
    input_quantization: InputQuantization | None = None,
) -> tuple[torch.Tensor, torch.Tensor | QuantizedInput]:
    """The sum of a residual stream and a layer's output, and its root mean square norm, in 8 bits with
    `input_quantization`."""
    rows, width = hidden_TD.shape
    out, steps, static = _output(hidden_TD, width, input_quantization)
    total = hidden_TD if delta_TD is None else torch.empty_like(hidden_TD)
    block = triton.next_power_of_2(width)
    _norm_kernel[(rows,)](
        hidden_TD, delta_TD, total, norm.weight, out, steps, static, width, norm.epsilon,
        HAS_DELTA=delta_TD is not None, ROUND=input_quantization is not None, STATIC=static is not steps, BLOCK=block,
        num_warps=8 if block >= 4096 else 4,
    )  # fmt: skip
    return total, out if input_quantization is None else QuantizedInput(out, steps)


def _output(source: torch.Tensor, width: int, input_quantization: InputQuantization | None) -> tuple[torch.Tensor, ...]:
    """Allocate (output, scales, static scale) for a kernel, which computes the scales itself if the last two are one
    tensor. Without quantization all three are the output, and the kernel uses only the first."""
    if input_quantization is None:
        out = source.new_empty((len(source), width))
        return out, out, out
    codes, scales = rounded_like(source, width)
    return codes, scales, scales if input_quantization.static_scale is None else input_quantization.static_scale


def quantize_rows(source_TD: torch.Tensor, input_quantization: InputQuantization) -> QuantizedInput:
    """Quantize the rows [T, D] to 8 bits."""
    return QuantizedInput(*rounded_rows(source_TD, input_quantization.static_scale))


@triton.jit
def _silu_mul_kernel(both, out, steps, static, width, ROUND: tl.constexpr, STATIC: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    g = tl.load(both + row * 2 * width + at, mask=inside, other=0.0)
    u = tl.load(both + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    wide = g.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(g.dtype).to(tl.float32)
    product = (activated * u).to(g.dtype)
    if ROUND:
        store_rounded(product.to(tl.float32), inside, out, row * width + at, steps, row, static, STATIC)
    else:
        tl.store(out + row * width + at, product, mask=inside)


def silu_mul(both: torch.Tensor, input_quantization: InputQuantization | None = None) -> torch.Tensor | QuantizedInput:
    """`silu(gate) * up` of the two halves of a row, gate first; with `input_quantization` in 8 bits, for which one
    program processes a whole row."""
    rows, width = both.shape[0], both.shape[1] // 2
    out, steps, static = _output(both, width, input_quantization)
    block = 2048 if input_quantization is None else triton.next_power_of_2(width)
    _silu_mul_kernel[(rows, triton.cdiv(width, block))](
        both, out, steps, static, width, ROUND=input_quantization is not None, STATIC=static is not steps, BLOCK=block,
        num_warps=4 if input_quantization is None else 16,
    )  # fmt: skip
    return out if input_quantization is None else QuantizedInput(out, steps)


@triton.jit
def _rope_kernel(
    source, weight, epsilon, cos, sin, out, cache, cache_row, heads,
    source_row, out_row, HALF: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, HALF)
    place = source + token * source_row + head * (2 * HALF)
    low, high = tl.load(place + at), tl.load(place + HALF + at)
    kind = low.dtype
    if NORM:
        a, b = low.to(tl.float32), high.to(tl.float32)
        scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / (2 * HALF) + epsilon)
        low = (tl.load(weight + at).to(tl.float32) * (a * scale).to(kind).to(tl.float32)).to(kind)
        high = (tl.load(weight + HALF + at).to(tl.float32) * (b * scale).to(kind).to(tl.float32)).to(kind)
    if TURN:
        angle = token * (2 * HALF)
        c0, c1 = tl.load(cos + angle + at).to(tl.float32), tl.load(cos + angle + HALF + at).to(tl.float32)
        s0, s1 = tl.load(sin + angle + at).to(tl.float32), tl.load(sin + angle + HALF + at).to(tl.float32)
        first = (low.to(tl.float32) * c0).to(kind).to(tl.float32) + (-high.to(tl.float32) * s0).to(kind).to(tl.float32)
        second = (high.to(tl.float32) * c1).to(kind).to(tl.float32) + (low.to(tl.float32) * s1).to(kind).to(tl.float32)
        low, high = first.to(kind), second.to(kind)
    if CACHED:
        to = cache + (tl.load(cache_row + token) * heads + head) * (2 * HALF)
    else:
        to = out + token * out_row + head * (2 * HALF)
    tl.store(to + at, low)
    tl.store(to + HALF + at, high)


def _norm_arguments(norm: Norm | None, unused: torch.Tensor) -> tuple[torch.Tensor, float]:
    return (unused, 0.0) if norm is None else (norm.weight, norm.epsilon)


def rotated(source_THE: torch.Tensor, norm: Norm | None, cos_TE: torch.Tensor, sin_TE: torch.Tensor) -> torch.Tensor:
    """Heads after their norm, if any, and rotation, in newly allocated memory."""
    tokens, heads, size = source_THE.shape
    out = torch.empty_like(source_THE, memory_format=torch.contiguous_format)
    _rope_kernel[(tokens, heads)](
        source_THE, *_norm_arguments(norm, cos_TE), cos_TE, sin_TE, out, out, cos_TE, heads,
        source_THE.stride(0), heads * size, HALF=size // 2,
        TURN=True, NORM=norm is not None, CACHED=False, num_warps=1,
    )  # fmt: skip
    return out


def rotate_into(
    cache_RKE: torch.Tensor,
    row_T: torch.Tensor,
    source_TKE: torch.Tensor,
    turn: tuple[Norm | None, torch.Tensor, torch.Tensor] | None,
) -> None:
    """Write heads into rows of a cache: with `turn` (norm, cos, sin) normed, if there is a norm, and rotated."""
    tokens, heads, size = source_TKE.shape
    norm, cos, sin = turn or (None, source_TKE, source_TKE)
    _rope_kernel[(tokens, heads)](
        source_TKE, *_norm_arguments(norm, cos), cos, sin, cache_RKE, cache_RKE, row_T, heads,
        source_TKE.stride(0), 0, HALF=size // 2,
        TURN=turn is not None, NORM=norm is not None, CACHED=True, num_warps=1,
    )  # fmt: skip


@triton.jit
def _vision_rope_kernel(
    packed, cos, sin, out, tokens, heads, HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr
):
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, at = tl.arange(0, HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (head < heads) & (at < HALF)
    place = packed + (token * 3 + part) * heads * 2 * HALF + head * 2 * HALF + at
    low, high = tl.load(place, mask=inside), tl.load(place + HALF, mask=inside)
    if part < 2:
        angle, in_head = token * 2 * HALF + at, at < HALF
        c0, c1 = tl.load(cos + angle, mask=in_head), tl.load(cos + angle + HALF, mask=in_head)
        s0, s1 = tl.load(sin + angle, mask=in_head), tl.load(sin + angle + HALF, mask=in_head)
        a, b = low.to(tl.float32), high.to(tl.float32)
        low, high = (a * c0 - b * s0).to(low.dtype), (b * c1 + a * s1).to(high.dtype)
    to = out + (part.to(tl.int64) * tokens + token) * heads * 2 * HALF + head * 2 * HALF + at
    tl.store(to, low, mask=inside)
    tl.store(to + HALF, high, mask=inside)


def vision_heads(
    packed_PC: torch.Tensor, heads: int, cos_PE: torch.Tensor, sin_PE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value [P, H, E] from a fused product; the first two rotated in float32."""
    patches, size = len(packed_PC), cos_PE.shape[1]
    out = packed_PC.new_empty((3, patches, heads, size))
    _vision_rope_kernel[(patches, 3)](
        packed_PC, cos_PE, sin_PE, out, patches, heads, HALF=size // 2,
        BLOCK=triton.next_power_of_2(size // 2), HEADS=triton.next_power_of_2(heads), num_warps=4,
    )  # fmt: skip
    query, key, value = out.unbind(0)
    return query, key, value


@triton.jit
def _decode_kernel(
    query, key, value, table, length, partial, log_sum, scale,
    table_row, heads, GROUP: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tokens = tl.load(length + row)
    blocks = tl.cdiv(tokens, BLOCK)
    per_split = tl.cdiv(blocks, SPLITS)
    begin, end = split * per_split, tl.minimum((split + 1) * per_split, blocks)
    member = tl.arange(0, 16)  # a group of query heads, padded to the tile of a matrix product
    at = tl.arange(0, SIZE)
    q = tl.load(
        query + (row.to(tl.int64) * heads * GROUP + head * GROUP + member[:, None]) * SIZE + at[None, :],
        mask=member[:, None] < GROUP, other=0.0,
    )  # fmt: skip
    largest = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    weighted = tl.zeros([16, SIZE], tl.float32)
    inner = tl.arange(0, BLOCK)
    for block in range(begin, end):
        place = block * BLOCK + inner
        page = tl.load(table + row * table_row + place // PAGE).to(tl.int64)
        at_row = (page * PAGE + place % PAGE) * heads + head
        inside = place < tokens
        k = tl.load(key + at_row[:, None] * SIZE + at[None, :], mask=inside[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        higher = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        decay = tl.exp2(largest - higher)
        v = tl.load(value + at_row[:, None] * SIZE + at[None, :], mask=inside[:, None], other=0.0)
        weighted = weighted * decay[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * decay + tl.sum(weight, 1)
        largest = higher
    slot = (row.to(tl.int64) * heads + head) * SPLITS + split
    some = total > 0
    weighted = weighted / tl.where(some, total, 1.0)[:, None]
    tl.store(partial + (slot * GROUP + member[:, None]) * SIZE + at[None, :], weighted, mask=member[:, None] < GROUP)
    summed = tl.where(some, largest + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(log_sum + slot * GROUP + member, summed, mask=member < GROUP)


@triton.jit
def _combine_kernel(
    partial, log_sum, out, heads, GROUP: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group, member = head // GROUP, head % GROUP
    split = tl.arange(0, PADDED)
    slot = (row * heads + group) * SPLITS + split
    sums = tl.load(log_sum + slot * GROUP + member, mask=split < SPLITS, other=float("-inf"))
    weight = tl.exp2(sums - tl.maximum(tl.max(sums, 0), -1e30))
    weight = weight / tl.maximum(tl.sum(weight, 0), 1e-30)
    at = tl.arange(0, SIZE)
    parts = tl.load(
        partial + (slot[:, None] * GROUP + member) * SIZE + at[None, :], mask=split[:, None] < SPLITS, other=0.0
    )
    joined = tl.sum(parts * weight[:, None], 0)
    tl.store(out + (row * heads * GROUP + head) * SIZE + at, joined.to(out.dtype.element_ty))


def decode_attention(
    query_BHE: torch.Tensor,
    key_RKE: torch.Tensor,
    value_RKE: torch.Tensor,
    table_BP: torch.Tensor,
    length_B: torch.Tensor,
    page: int,
) -> torch.Tensor:
    """Attention of one token per row over `length_B` rows of a paged cache (0: an empty row, zeros): [B, H, E]. The
    context of a row is split into SPLITS parts, which are computed in parallel and merged."""
    rows, queries, size = query_BHE.shape
    heads = key_RKE.shape[1]
    group = queries // heads
    partial = query_BHE.new_empty((rows, heads, SPLITS, group, size), dtype=torch.float32)
    log_sum = query_BHE.new_empty((rows, heads, SPLITS, group), dtype=torch.float32)
    out = torch.empty_like(query_BHE)
    scale = size**-0.5 * 1.4426950408889634  # times log2(e), since the hardware computes powers of two
    _decode_kernel[(rows, heads, SPLITS)](
        query_BHE, key_RKE, value_RKE, table_BP, length_B, partial, log_sum, scale,
        table_BP.stride(0), heads, GROUP=group, SIZE=size, PAGE=page,
        BLOCK=SPLIT_BLOCK, SPLITS=SPLITS, num_warps=4, num_stages=3,
    )  # fmt: skip
    _combine_kernel[(rows, queries)](
        partial, log_sum, out, heads, GROUP=group, SIZE=size, SPLITS=SPLITS,
        PADDED=triton.next_power_of_2(SPLITS), num_warps=1,
    )  # fmt: skip
    return out
