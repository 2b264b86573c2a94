"""Triton kernels for 8-bit floats: for generation, rounding of rows and products of a few rows; for training, rounding
with a transpose.

A step of few rows takes the time to read its weights, and a matrix product for many rows leaves most multiprocessors
without data to read. Here every program reads some complete rows of the weight and multiplies them with all rows of the
step. Sums are in float32 and in a fixed order.

8-bit matrix products read both factors along the dimension that they sum over. Backward sums over the dimensions
that forward keeps, so there every factor is needed transposed: `cast` reads it once and writes it along its columns
and, on request, along its rows.

Shape letters: T rows of a step, D width, O outputs, M rows and N columns of any matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from vidqa.engine.torch_private import scaled_mm

BLOCK = 128  # rows and columns of a tile: a line of each side is as long as one memory transaction
FEW_ROWS = 128  # maximum number of rows of `few_rows_product`
LARGEST: tl.constexpr = tl.constexpr(448.0)  # of E4M3
LEAST: tl.constexpr = tl.constexpr(1e-12)  # minimum of a row's largest value, for all-zero rows


class Tiling(NamedTuple):
    """The tiling of a product: rows of the weight and elements of a row per program and iteration, warps, and pipeline
    stages. Fewer than 16 rows of the weight are multiplied without tensor cores, for one input row."""

    outputs: int
    width: int
    warps: int
    stages: int


# The fastest on an H100 in benchmarks/quantize.py; for one product of 64 rows another is 4 % faster.
ONE_ROW, SEVERAL_ROWS = Tiling(8, 512, 4, 4), Tiling(64, 256, 4, 4)


@triton.jit
def store_rounded(values, inside, codes, at, steps, row, static, STATIC: tl.constexpr):
    """Write a row of float32 as E4M3 at `codes + at`, and its scale (`step`) at `steps + row`."""
    step = tl.load(static) if STATIC else tl.maximum(tl.max(tl.abs(values), 0), LEAST) / LARGEST
    tl.store(steps + row, step)
    scaled = tl.minimum(tl.maximum(values / step, -LARGEST), LARGEST)
    tl.store(codes + at, scaled.to(tl.float8e4nv), mask=inside)


@triton.jit
def _round_kernel(source, codes, steps, static, width, source_row, STATIC: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(source + row * source_row + at, mask=at < width, other=0.0).to(tl.float32)
    store_rounded(values, at < width, codes, row * width + at, steps, row, static, STATIC)


def rounded_rows(source_TD: torch.Tensor, static: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows to codes [T, D] and steps float32 [T, 1], whose product approximates the source; `static` is the step
    of all rows, else each row's largest value determines its step."""
    source_TD = source_TD if source_TD.stride(1) == 1 else source_TD.contiguous()
    rows, width = source_TD.shape
    codes, steps = rounded_like(source_TD, width)
    block = triton.next_power_of_2(width)
    _round_kernel[(rows,)](
        source_TD, codes, steps, steps if static is None else static, width, source_TD.stride(0),
        STATIC=static is not None, BLOCK=block, num_warps=16 if block >= 8192 else 8,
    )  # fmt: skip
    return codes, steps


def rounded_like(source: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate codes [T, D] and steps [T, 1] for as many rows as the source has."""
    codes = source.new_empty((len(source), width), dtype=torch.float8_e4m3fn)
    return codes, source.new_empty((len(source), 1), dtype=torch.float32)


@triton.jit
def _few_rows_kernel(
    codes, steps, weight, scale, out, rows, width, outputs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row, inner = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    weight_at = weight + output[:, None].to(tl.int64) * width + inner[None, :]
    codes_at = codes + row[:, None] * width + inner[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for begin in range(0, width, WIDTH):
        inside = begin + inner[None, :] < width
        w = tl.load(weight_at + begin, mask=(output[:, None] < outputs) & inside, other=0.0)
        x = tl.load(codes_at + begin, mask=(row[:, None] < rows) & inside, other=0.0)
        total = tl.dot(w, tl.trans(x), total)
    step = tl.load(steps + row, mask=row < rows, other=0.0)
    total = total * tl.load(scale + output, mask=output < outputs, other=0.0)[:, None] * step[None, :]
    at = out + row[None, :] * outputs + output[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=(row[None, :] < rows) & (output[:, None] < outputs))


@triton.jit
def _one_row_kernel(
    codes, steps, weight, scale, out, width, outputs,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inner = tl.arange(0, WIDTH)
    weight_at = weight + output[:, None].to(tl.int64) * width + inner[None, :]
    total = tl.zeros([OUTPUTS, WIDTH], tl.float32)
    for begin in tl.range(0, width, WIDTH, num_stages=STAGES):
        inside = begin + inner < width
        w = tl.load(weight_at + begin, mask=(output[:, None] < outputs) & inside[None, :], other=0.0)
        x = tl.load(codes + begin + inner, mask=inside, other=0.0)
        total += w.to(tl.float32) * x.to(tl.float32)[None, :]
    sums = tl.sum(total, 1) * tl.load(scale + output, mask=output < outputs, other=0.0) * tl.load(steps)
    tl.store(out + output, sums.to(out.dtype.element_ty), mask=output < outputs)


def few_rows_product(
    codes_TD: torch.Tensor,
    step_T1: torch.Tensor,
    weight_OD: torch.Tensor,
    scale_1O: torch.Tensor,
    dtype: torch.dtype,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """The product [T, O] of rounded rows with weights in E4M3, for T up to 128."""
    (rows, width), outputs = codes_TD.shape, len(weight_OD)
    out = codes_TD.new_empty((rows, outputs), dtype=dtype)
    tiling = tiling or (ONE_ROW if rows == 1 else SEVERAL_ROWS)
    programs = triton.cdiv(outputs, tiling.outputs)
    if tiling.outputs < 16:
        _one_row_kernel[(programs,)](
            codes_TD, step_T1, weight_OD, scale_1O, out, width, outputs,
            OUTPUTS=tiling.outputs, WIDTH=tiling.width, STAGES=tiling.stages, num_warps=tiling.warps,
        )  # fmt: skip
        return out
    _few_rows_kernel[(programs,)](
        codes_TD, step_T1, weight_OD, scale_1O, out, rows, width, outputs,
        ROWS=max(16, triton.next_power_of_2(rows)), OUTPUTS=tiling.outputs, WIDTH=tiling.width,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


def float8_product(
    codes_TD: torch.Tensor,
    step_T1: torch.Tensor,
    weight_OD: torch.Tensor,
    scale_1O: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The product [T, O] of rounded rows with weights in E4M3 and a scale for each output. D and O are multiples of
    16."""
    if len(codes_TD) <= FEW_ROWS:
        return few_rows_product(codes_TD, step_T1, weight_OD, scale_1O, dtype)
    return scaled_mm(codes_TD, weight_OD.t(), scale_a=step_T1, scale_b=scale_1O, out_dtype=dtype, use_fast_accum=True)


@triton.jit
def _cast_kernel(
    source, scale, rows, columns, height, width, filled, source_row, rows_row, columns_row,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(width, BLOCK)
    tile = tl.program_id(0)
    m = (tile // across) * BLOCK + tl.arange(0, BLOCK)
    n = (tile % across) * BLOCK + tl.arange(0, BLOCK)
    inside = (m < height)[:, None] & (n < width)[None, :]
    wide = tl.load(source + m[:, None].to(tl.int64) * source_row + n[None, :], mask=inside, other=0.0).to(tl.float32)
    rounded = (wide * tl.load(scale)).to(columns.dtype.element_ty)
    if ROWS:
        tl.store(rows + m[:, None].to(tl.int64) * rows_row + n[None, :], rounded, mask=inside)
    turned = (n < width)[:, None] & (m < filled)[None, :]
    tl.store(columns + n[:, None].to(tl.int64) * columns_row + m[None, :], tl.trans(rounded), mask=turned)


def cast(source_MN: torch.Tensor, scale: torch.Tensor, columns_NM: torch.Tensor, rows_MN: torch.Tensor | None) -> None:
    """Write `source * scale`, rounded, along its columns and along its rows. All may be parts of wider matrices.
    Columns may be longer than those of the source: zeros follow."""
    source_MN = source_MN if source_MN.stride(1) == 1 else source_MN.contiguous()
    (height, width), filled = source_MN.shape, columns_NM.shape[1]
    tiles = triton.cdiv(filled, BLOCK) * triton.cdiv(width, BLOCK)
    rows = columns_NM if rows_MN is None else rows_MN
    _cast_kernel[(tiles,)](
        source_MN, scale, rows, columns_NM, height, width, filled,
        source_MN.stride(0), rows.stride(0), columns_NM.stride(0), ROWS=rows_MN is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
