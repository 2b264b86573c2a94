"""Triton kernels for generation with weights in 4-bit integers, as files hold them: products of a few rows, and the
dequantized weight for more.

compressed-tensors packs eight codes from 0 to 15 into an int32, the first in its lowest bits; a weight is (code - 8)
times the scale of its group. Nothing converts a code: in the bits of the float 1.0 a code at bit b adds
code x 2**(b - 23), so that inputs times 2**(23 - b) give their sum beside that of their products.

Shape letters: T rows of a step, D width, O outputs, G groups of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FEW_ROWS = 64  # up to which codes are multiplied as they are
WORDS = 32  # of a row that a program holds at one time
TILES = (64, 32, 16)  # rows of the weight that a program holds
MANY = 8192  # rows of a weight from which on programs of the largest tile suffice for all multiprocessors


@triton.jit
def _above_one(words, PLACE: tl.constexpr):
    """1 + code / u of the codes at PLACE of each word, float32: u is 2048 at even places, 128 at odd ones."""
    moved = words << (12 - 8 * (PLACE // 2)) if PLACE < 4 else words >> (8 * (PLACE // 2) - 12)
    return ((moved & (15 << (12 + 4 * (PLACE % 2)))) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _one_row_kernel(
    hidden, packed, scale, out, words, groups,
    GROUP: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    output, inner = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, WORDS)
    row_at = output[:, None].to(tl.int64)
    packed_at = packed + row_at * words + inner[None, :]
    scale_at = scale + row_at * groups + (inner // GROUP)[None, :]
    total = tl.zeros([OUTPUTS, WORDS], tl.float32)
    for begin in tl.range(0, words, WORDS, num_stages=3):
        codes = tl.load(packed_at + begin)
        scales = tl.load(scale_at + begin // GROUP).to(tl.float32)
        part, sums = tl.zeros([OUTPUTS, WORDS], tl.float32), tl.zeros([WORDS], tl.float32)
        for place in tl.static_range(8):
            x = tl.load(hidden + 8 * (begin + inner) + place).to(tl.float32)
            part += _above_one(codes, place) * (x * (2048 >> (4 * (place % 2))))[None, :]
            sums += x * ((2048 >> (4 * (place % 2))) + 8)
        total += (part - sums[None, :]) * scales
    tl.store(out + output, tl.sum(total, 1).to(out.dtype.element_ty))


@triton.jit
def _few_rows_kernel(
    hidden, packed, scale, out, rows, words, outputs, groups,
    GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """`hidden` has the inputs of a place of all words side by side: [T, 8, D/8]."""
    output, inner = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, WORDS)
    row, row_at = tl.arange(0, ROWS), output[:, None].to(tl.int64)
    packed_at = packed + row_at * words + inner[None, :]
    scale_at = scale + row_at * groups + (inner // GROUP)[None, :]
    hidden_at = hidden + row[:, None] * (8 * words) + inner[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for begin in range(0, words, WORDS):
        codes = tl.load(packed_at + begin)
        scales = tl.load(scale_at + begin // GROUP).to(tl.float32)
        for place in tl.static_range(8):
            x = tl.load(hidden_at + place * words + begin, mask=(row < rows)[:, None], other=0.0)
            unit = 2048 >> (4 * (place % 2))
            weight = (_above_one(codes, place) * unit - (unit + 8)) * scales
            total = tl.dot(weight.to(x.dtype), tl.trans(x), total)
    at = out + row[None, :] * outputs + output[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=(row < rows)[None, :])


def int4_product(hidden_TD: torch.Tensor, packed: torch.Tensor, scale_OG: torch.Tensor) -> torch.Tensor:
    """The product [T, O] with packed codes int32 [O, D/8] and their scales, in the precision of the inputs."""
    rows, (outputs, words), groups = len(hidden_TD), packed.shape, scale_OG.shape[1]
    group = words // groups
    if rows > FEW_ROWS or outputs % TILES[-1] or words % WORDS or (WORDS % group and group % WORDS):
        return hidden_TD @ dequantized(packed, scale_OG).t()
    out = hidden_TD.new_empty((rows, outputs))
    if rows == 1:
        tile = TILES[0] if outputs % TILES[0] == 0 and outputs >= MANY else TILES[-1]
        _one_row_kernel[(outputs // tile,)](
            hidden_TD.contiguous(), packed, scale_OG, out, words, groups,
            GROUP=group, OUTPUTS=tile, WORDS=WORDS, num_warps=4 if tile == TILES[0] else 2,
        )  # fmt: skip
        return out
    tile = next(tile for tile in TILES[1:] if outputs % tile == 0)
    by_place = hidden_TD.view(rows, words, 8).transpose(1, 2).contiguous()
    _few_rows_kernel[(outputs // tile,)](
        by_place, packed, scale_OG, out, rows, words, outputs, groups,
        GROUP=group, ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=tile, WORDS=WORDS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit
def _dequantize_kernel(packed, scale, out, width, groups, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    word = tl.load(packed + row * (width // 8) + at // 8, mask=inside, other=0)
    code = ((word >> (at % 8 * 4)) & 15) - 8
    s = tl.load(scale + row * groups + at // (width // groups), mask=inside, other=0.0)
    tl.store(out + row * width + at, (code.to(tl.float32) * s.to(tl.float32)).to(s.dtype), mask=inside)


def dequantized(packed: torch.Tensor, scale_OG: torch.Tensor) -> torch.Tensor:
    """The weight [O, D] of packed codes int32 [O, D/8] with a scale for each group of a row."""
    outputs, width = len(packed), 8 * packed.shape[1]
    out = scale_OG.new_empty((outputs, width))
    _dequantize_kernel[(outputs, triton.cdiv(width, 1024))](
        packed, scale_OG, out, width, scale_OG.shape[1], BLOCK=1024, num_warps=4
    )
    return out
