"""A Triton kernel that rounds a matrix to 8-bit floats and turns it on the way.

Matrix products in 8-bit floats read both factors along the dimension that they sum over. Backward sums over what
forward keeps, so there every factor is needed the other way round: read once, it is written along its columns and,
where that is asked for, along its rows.

Shape letters: M rows, N columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 128  # rows and columns of a tile: a line of each side is as long as what memory gives at a time


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
