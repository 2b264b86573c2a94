"""Matrix products with 4-bit integer weights, for generation: PyTorch's own product up to 8 tokens, a Triton kernel up
to 64, and the dequantized weight for more (a pack of prompts).

A weight is (code - 8) times the scale of its group of inputs. All three read one memory layout, that of PyTorch's
product (`aten._convert_weight_to_int4pack`): int32 words [O/8, D/32J, 32, J], where J = 4, 2 or 1 is PyTorch's
innerKTiles / 2. A block is 8 outputs x 32 J inputs. In it an output has the words (t, j) with t < 4, and the code at
bit 4p of word (t, j) is that of input

    32 j + 8 (p % 4) + 2 t + p // 4    of the block's 32 J inputs.

The Triton kernel needs no conversion from integer to float: the code is put into the mantissa of 1.0, where a code at
bit b adds code x 2**(b - 23).

Shape letters: T tokens, D inputs, O outputs, G groups of inputs that share a scale. In the kernels a row is a token,
`word` numbers the D/8 words of an output, `place` is p, and names that end in `_at` are pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidqa.engine import torch_private

MAX_ROWS_OF_PYTORCH = 8  # tokens up to which PyTorch's product is the fastest
MAX_ROWS_OF_KERNEL = 64  # tokens up to which the Triton kernel is faster than the dequantized weight
WORDS = 32  # words of an output that one iteration of a program loads
OUTPUT_TILES = (32, 16)  # outputs of one program, the largest that divides O


def pack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Convert the layout of compressed-tensors' files, int32 [O, D/8] with the first code in the lowest bits, to that
    of the kernels, int32 [O/8, D/32J, 32, J]. O must be a multiple of 8, D of 32."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    codes = ((packed[:, :, None] >> shifts) & 15).flatten(1).to(torch.uint8)
    tiles = next(count for count in (8, 4, 2) if codes.shape[1] % (16 * count) == 0)
    return torch_private.to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], tiles)


@triton.jit
def _above_one(words, PLACE: tl.constexpr):
    """Compute 1 + code / u for the code at PLACE of each word, float32; u is 2048 for even places, 128 for odd ones."""
    moved = words << (12 - 8 * (PLACE // 2)) if PLACE < 4 else words >> (8 * (PLACE // 2) - 12)
    return ((moved & (15 << (12 + 4 * (PLACE % 2)))) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _word_at(output, word, words, J: tl.constexpr):
    """The offset of a word of an output; `words` is D/8."""
    block = (output // 8).to(tl.int64) * (8 * words) + word // (4 * J) * (32 * J)
    return block + output % 8 * (4 * J) + word % (4 * J)


@triton.jit
def _few_rows_kernel(
    hidden, packed, scale_zero, out, rows, words, outputs, group,
    J: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Compute one tile of outputs of `out` [T, O]. `hidden` is [T, 8, D/8], reordered so that the inputs of one place
    of all words are contiguous; `group` is the number of inputs per scale."""
    output, inner = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, WORDS)
    row = tl.arange(0, ROWS)
    packed_at = packed + _word_at(output[:, None], inner[None, :], words, J)
    first_input = inner // (4 * J) * (32 * J) + inner % J * 32
    hidden_at = hidden + row[:, None] * (8 * words) + inner[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for begin in range(0, words, WORDS):
        codes = tl.load(packed_at + begin * 8)
        groups = (8 * begin + first_input) // group
        scales = tl.load(scale_zero + 2 * (groups[None, :] * outputs + output[:, None])).to(tl.float32)
        for place in tl.static_range(8):
            x = tl.load(hidden_at + place * words + begin, mask=(row < rows)[:, None], other=0.0)
            unit = 2048 >> (4 * (place % 2))
            weight = (_above_one(codes, place) * unit - (unit + 8)) * scales
            total = tl.dot(weight.to(x.dtype), tl.trans(x), total)
    at = out + row[None, :] * outputs + output[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=(row < rows)[None, :])


def int4_product(hidden_TD: torch.Tensor, packed: torch.Tensor, scale_zero_GO2: torch.Tensor) -> torch.Tensor:
    """The product [T, O], in the precision of the inputs, with weights from `pack_int4`. `scale_zero_GO2` has the scale
    of each group and a zero point of 0, which PyTorch's product requires."""
    rows, width = hidden_TD.shape
    groups, outputs, _ = scale_zero_GO2.shape
    words, j = width // 8, packed.shape[3]
    if rows <= MAX_ROWS_OF_PYTORCH:
        return torch_private.int4pack_mm(hidden_TD.contiguous(), packed, width // groups, scale_zero_GO2)
    if rows > MAX_ROWS_OF_KERNEL or outputs % OUTPUT_TILES[-1] or words % WORDS:
        return hidden_TD @ dequantize_int4(packed, scale_zero_GO2).t()
    out = hidden_TD.new_empty((rows, outputs))
    tile = next(tile for tile in OUTPUT_TILES if outputs % tile == 0)
    by_place = hidden_TD.view(rows, -1, j, 4, 4, 2).permute(0, 5, 3, 1, 4, 2).contiguous()
    _few_rows_kernel[(outputs // tile,)](
        by_place, packed, scale_zero_GO2, out, rows, words, outputs, width // groups, J=j,
        ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=tile, WORDS=WORDS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit
def _dequantize_kernel(packed, scale_zero, out, width, outputs, group, J: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, within = at < width, at % 32
    word = at // (32 * J) * (4 * J) + within % 8 // 2 * J + at % (32 * J) // 32
    codes = tl.load(packed + _word_at(row, word, width // 8, J), mask=inside, other=0)
    code = ((codes >> (within // 8 * 4 + within % 2 * 16)) & 15) - 8
    s = tl.load(scale_zero + 2 * (at // group * outputs + row), mask=inside, other=0.0)
    tl.store(out + row * width + at, (code.to(tl.float32) * s.to(tl.float32)).to(s.dtype), mask=inside)


def dequantize_int4(packed: torch.Tensor, scale_zero_GO2: torch.Tensor) -> torch.Tensor:
    """The weight [O, D] in the precision of its scales."""
    (groups, outputs, _), width = scale_zero_GO2.shape, packed[0].numel()
    out = scale_zero_GO2.new_empty((outputs, width))
    _dequantize_kernel[(outputs, triton.cdiv(width, 1024))](
        packed, scale_zero_GO2, out, width, outputs, width // groups, J=packed.shape[3], BLOCK=1024, num_warps=4
    )
    return out
