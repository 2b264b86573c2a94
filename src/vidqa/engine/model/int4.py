"""Weights in 4-bit integers for generation: PyTorch's own int4 product for a few rows, a dequantized weight for a pack.

compressed-tensors packs eight codes from -8 to 7 into an int32, each with 8 added, and has a scale for each group of a
row. PyTorch's product reads the same codes in an order of its own, and computes (code - 8) x scale + zero: all zeros
are 0 here. Both orders are held, a byte a weight together: the files' order is what a prompt's weight is dequantized
from, each time, since no program undoes the other one.

Shape letters: T tokens, D width, O outputs, G groups of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from vidqa.engine import torch_private

CODES = 8  # of an int32
FEW_ROWS = 64  # up to which weights are read in 4 bits
TILES = (8, 4, 2)  # of 16 inputs each, which a warp of the product takes at a time
AMPERE = (8, 0)  # compute capability of its kernel


class Int4(NamedTuple):
    """`packed` int32 [O, D/8] and `scale` [O, G] as in files; `ordered` are the codes as the product reads them, and
    `scale_zero` [G, O, 2] scales beside their zeros, in the model's precision."""

    packed: torch.Tensor
    scale: torch.Tensor
    ordered: torch.Tensor
    scale_zero: torch.Tensor

    @property
    def group(self) -> int:
        return CODES * self.packed.shape[1] // self.scale.shape[1]


def int4_of(packed: torch.Tensor, scale: torch.Tensor) -> Int4:
    """Of packed codes int32 [O, D/8] and scales [O, G]."""
    codes = codes_of(packed)
    if packed.is_cuda:
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
        tiles = next(count for count in TILES if codes.shape[1] % (16 * count) == 0)
        ordered = torch_private.to_int4pack(pairs, tiles)
    else:
        ordered = torch_private.to_int4pack_for_cpu(codes, 1)
    scale_zero = torch.stack([scale.t(), torch.zeros_like(scale.t())], -1).contiguous()
    return Int4(packed, scale, ordered, scale_zero)


def codes_of(packed: torch.Tensor) -> torch.Tensor:
    """Codes from 0 to 15, int32 [O, D], of which the first is in the lowest bits."""
    shifts = torch.arange(0, 4 * CODES, 4, dtype=torch.int32, device=packed.device)
    return ((packed[:, :, None] >> shifts) & 15).flatten(1)


def int4_product(kernels: Any, hidden_TD: torch.Tensor, weight: Int4) -> torch.Tensor:
    """[T, O] in the precision of the inputs."""
    if len(hidden_TD) > FEW_ROWS:
        return hidden_TD @ kernels.dequantized(weight.packed, weight.scale).t()
    multiply = torch_private.int4pack_mm if hidden_TD.is_cuda else torch_private.int4pack_mm_for_cpu
    return multiply(hidden_TD.contiguous(), weight.ordered, weight.group, weight.scale_zero)


def why_not_int4(layer: Any, dtype: torch.dtype) -> str:
    """Why PyTorch has no product of a layer's packed weight; empty where it has."""
    outputs, width, on_gpu = layer.out_features, layer.in_features, layer.weight_packed.is_cuda
    group = width // layer.weight_scale.shape[1]
    if hasattr(layer, "weight_g_idx") or hasattr(layer, "weight_zero_point"):
        return "its groups are not runs of inputs, or not symmetric"
    if outputs % (8 if on_gpu else 16) or width % (16 * min(TILES) if on_gpu else group):
        return f"the shape [{outputs}, {width}] is none that the int4 product takes"
    if on_gpu and (dtype != torch.bfloat16 or torch.cuda.get_device_capability(layer.weight_packed.device) < AMPERE):
        return "this GPU or precision has no int4 product"
    return ""
