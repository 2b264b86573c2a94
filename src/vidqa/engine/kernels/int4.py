"""Triton kernels for generation with weights in 4-bit integers, as files hold them: products of a few rows, and the
dequantized weight for more.

compressed-tensors packs eight codes from 0 to 15 into an int32, the first in its lowest bits; a weight is (code - 8)
times the scale of its group. No instruction converts a code: in the bits of the float 2**23, a code at bit 4 k adds
code x 16**k, for k up to 4, and the input is divided by 16**k instead.

Shape letters: T rows of a step, D width, O outputs, G groups of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidqa.engine.kernels.float8 import Tiling

FEW_ROWS = 64  # up to which codes are multiplied as they are
ONE_ROW, SEVERAL_ROWS = Tiling(8, 512, 4, 3), Tiling(64, 256, 4, 3)


@triton.jit
def _centred(words, PLACE: tl.constexpr):
    """(code - 8) x 16**k of the codes at PLACE of each word: k is PLACE % 5, since five codes lie in a mantissa."""
    bits = words if PLACE < 5 else words >> 20
    numbers = (bits & (15 << (4 * (PLACE % 5)))) | 0x4B000000  # the bits of 2**23
    return numbers.to(tl.float32, bitcast=True) - (8388608.0 + 8.0 * (1 << (4 * (PLACE % 5))))


@triton.jit
def _one_row_kernel(
    hidden, packed, scale, out, words, outputs, groups, group_words,
    OUTPUTS: tl.constexpr, WORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inner = tl.arange(0, WORDS)
    row_at = output[:, None].to(tl.int64)
    total = tl.zeros([OUTPUTS, WORDS], tl.float32)
    for begin in tl.range(0, words, WORDS, num_stages=STAGES):
        word = begin + inner
        inside = (output[:, None] < outputs) & (word[None, :] < words)
        codes = tl.load(packed + row_at * words + word[None, :], mask=inside, other=0)
        scales = tl.load(scale + row_at * groups + (word // group_words)[None, :], mask=inside, other=0.0)
        part = tl.zeros([OUTPUTS, WORDS], tl.float32)
        for place in tl.static_range(8):
            x = tl.load(hidden + word * 8 + place, mask=word < words, other=0.0).to(tl.float32)
            x = x / (1 << (4 * (place % 5)))
            part += _centred(codes, place) * x[None, :]
        total += part * scales.to(tl.float32)
    tl.store(out + output, tl.sum(total, 1).to(out.dtype.element_ty), mask=output < outputs)


@triton.jit
def _few_rows_kernel(
    hidden, packed, scale, out, rows, words, outputs, groups, group_words,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """`hidden` has the inputs of a place of all words side by side: [T, 8, D/8]."""
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row, inner = tl.arange(0, ROWS), tl.arange(0, WORDS)
    row_at = output[:, None].to(tl.int64)
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for begin in range(0, words, WORDS):
        word = begin + inner
        inside = (output[:, None] < outputs) & (word[None, :] < words)
        codes = tl.load(packed + row_at * words + word[None, :], mask=inside, other=0)
        scales = tl.load(scale + row_at * groups + (word // group_words)[None, :], mask=inside, other=0.0)
        for place in tl.static_range(8):
            at = hidden + (row[:, None] * 8 + place) * words + word[None, :]
            x = tl.load(at, mask=(row[:, None] < rows) & (word[None, :] < words), other=0.0)
            unit = scales.to(tl.float32) / (1 << (4 * (place % 5)))
            total = tl.dot((_centred(codes, place) * unit).to(x.dtype), tl.trans(x), total)
    at = out + row[None, :] * outputs + output[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=(row[None, :] < rows) & (output[:, None] < outputs))


def int4_product(
    hidden_TD: torch.Tensor, packed: torch.Tensor, scale_OG: torch.Tensor, tiling: Tiling | None = None
) -> torch.Tensor:
    """The product [T, O] with packed codes int32 [O, D/8] and their scales, in the precision of the inputs."""
    rows, (outputs, words), groups = len(hidden_TD), packed.shape, scale_OG.shape[1]
    if rows > FEW_ROWS:
        return hidden_TD @ dequantized(packed, scale_OG).t()
    out = hidden_TD.new_empty((rows, outputs))
    tiling = tiling or (ONE_ROW if rows == 1 else SEVERAL_ROWS)
    programs, tile = triton.cdiv(outputs, tiling.outputs), tiling.width // 8
    if tiling.outputs < 16:
        _one_row_kernel[(programs,)](
            hidden_TD.contiguous(), packed, scale_OG, out, words, outputs, groups, words // groups,
            OUTPUTS=tiling.outputs, WORDS=tile, STAGES=tiling.stages, num_warps=tiling.warps,
        )  # fmt: skip
        return out
    by_place = hidden_TD.view(rows, words, 8).transpose(1, 2).contiguous()
    _few_rows_kernel[(programs,)](
        by_place, packed, scale_OG, out, rows, words, outputs, groups, words // groups,
        ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=tiling.outputs, WORDS=tile,
        num_warps=tiling.warps, num_stages=tiling.stages,
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
