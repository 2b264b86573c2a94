"""Compares the Triton kernels of 8-bit floats and 4-bit integers with the plain ones: `python float8_kernels.py`.

With TRITON_INTERPRET=1, which must be set before Triton is imported, it needs no GPU.
"""

from __future__ import annotations

import os
from itertools import product

import torch

from vidqa.engine.kernels import cuda, float8, int4, plain
from vidqa.engine.kernels.float8 import cast
from vidqa.engine.model.layers import Norm
from vidqa.engine.model.quantized import FLOAT8, InputQuantization

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") else "cuda"
SHAPES = ((1, 256, 64), (3, 320, 48), (33, 96, 160))  # rows, width, outputs
TILINGS = (float8.Tiling(16, 128, 4, 3), float8.Tiling(64, 64, 4, 3))


def same_codes(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    exact = theirs.float()
    off = ours.float() != exact
    if DEVICE == "cpu":  # the interpreter loses the carry of a mantissa that is rounded up
        off &= exact.abs().log2() % 1 != 0
    assert off.float().mean() < 0.005, "codes differ beyond those that lie between two"


def int4_ordered(packed: torch.Tensor) -> torch.Tensor:
    """The order that PyTorch's product takes, code by code."""
    outputs, width = len(packed), 8 * packed.shape[1]
    codes = ((packed[:, :, None] >> torch.arange(0, 32, 4)) & 15).flatten(1)
    j = next(count for count in (4, 2, 1) if width % (32 * count) == 0)
    words = torch.zeros(outputs // 8, width // (32 * j), 32, j, dtype=torch.int64)
    for bit, (step, side) in enumerate(product((0, 1), (0, 8, 16, 24))):
        for lane, word in product(range(32), range(j)):
            first = 32 * word + 2 * (lane % 4) + side + step
            words[:, :, lane, word] |= codes[lane // 4 :: 8, first :: 32 * j].long() << (4 * bit)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def check_cast() -> None:
    """Each number is written where it belongs, and nothing beside it."""
    numbers = torch.randint(-8, 9, (200, 300), generator=torch.Generator().manual_seed(0)) / 2
    source, scale = numbers.bfloat16()[:, :140].to(DEVICE), torch.tensor(2.0, device=DEVICE)
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        columns, rows = (torch.zeros(*shape, device=DEVICE).to(kind) for shape in ((150, 400), (200, 300)))
        cast(source, scale, columns[5:145, 64:264], rows[:, 100:240])
        assert torch.equal(rows[:, 100:240].float(), source.float() * 2)
        assert torch.equal(columns[5:145, 64:264].float(), source.float().t() * 2)
        assert rows.float().abs().sum() == columns.float().abs().sum() == source.float().abs().sum() * 2
        alone = torch.zeros(140, 200, device=DEVICE).to(kind)
        cast(source, scale, alone, None)
        assert torch.equal(alone.float(), source.float().t() * 2)
        longer = torch.full((140, 208), 3.0, device=DEVICE).to(kind)
        cast(source, scale, longer, None)
        assert torch.equal(longer[:, :200].float(), source.float().t() * 2) and not longer[:, 200:].float().any()


def main() -> None:
    if DEVICE == "cpu":  # the interpreter rounds unlike a GPU: these numbers need no rounding
        check_cast()
    generator = torch.Generator().manual_seed(0)
    static = InputQuantization(torch.full((1,), 0.005, device=DEVICE))
    for rows, width, outputs in SHAPES:
        hidden, delta = (torch.randn(rows, width, generator=generator).to(DEVICE) for _ in range(2))
        weight = torch.rand(width, generator=generator).to(DEVICE)
        calls = (
            (lambda kernels, *args: kernels.quantize_rows(*args), (hidden,)),
            (lambda kernels, *args: kernels.add_norm(*args)[1], (hidden, delta, Norm(weight, None, 1e-6))),
            (lambda kernels, *args: kernels.silu_mul(*args), (hidden,)),
        )
        for (call, inputs), rounding in product(calls, (InputQuantization(None), static)):
            ours, theirs = (call(kernels, *inputs, rounding) for kernels in (cuda, plain))
            torch.testing.assert_close(ours.scale, theirs.scale)
            same_codes(ours.codes, theirs.codes)
        codes, step = plain.quantize_rows(hidden, InputQuantization(None))
        weights = torch.randn(outputs, width, generator=generator).to(DEVICE).to(FLOAT8)
        scale = torch.rand(1, outputs, generator=generator).to(DEVICE)
        exact = (codes.float() * step) @ (weights.float() * scale.t()).t()
        for tiling in (None, *TILINGS, *([float8.Tiling(8, 128, 4, 2)] if rows == 1 else [])):
            found = float8.few_rows_product(codes, step, weights, scale, torch.float32, tiling)
            # Tensor cores sum 8-bit products in fewer bits than float32 has: errors are of the size of the sums.
            torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item())
    precision, off = (torch.float32, 1e-4) if DEVICE == "cpu" else (torch.bfloat16, 1e-2)
    counts, shapes = (1, 3, 33, 65), ((1024, 64), (512, 48), (320, 24), (224, 8))
    if DEVICE == "cpu":  # where PyTorch has no such product, and the interpreter is slow
        int4.MAX_ROWS_OF_PYTORCH, counts, shapes = 0, (3, 65), ((256, 16), (320, 8))
    for rows, (width, outputs) in product(counts, shapes):
        packed = torch.randint(-(2**31), 2**31, (outputs, width // 8), generator=generator, dtype=torch.int32)
        packed, ordered = packed.to(DEVICE), int4_ordered(packed).to(DEVICE)
        if DEVICE == "cuda":
            assert torch.equal(int4.pack_int4(packed), ordered)
        hidden = torch.randn(rows, width, generator=generator).to(DEVICE, precision)
        for group in (32, 64, 256):
            if width % group:
                continue
            scale = torch.rand(width // group, outputs, 1, generator=generator).to(DEVICE, precision)
            scale_zero = torch.cat([scale, torch.zeros_like(scale)], -1)
            weight = plain.dequantize_int4(packed, scale_zero)
            assert torch.equal(int4.dequantize_int4(ordered, scale_zero), weight)
            exact = hidden.double() @ weight.double().t()
            found = int4.int4_product(hidden, ordered, scale_zero).double()
            torch.testing.assert_close(found, exact, rtol=off, atol=off * exact.abs().max().item())


if __name__ == "__main__":
    main()
