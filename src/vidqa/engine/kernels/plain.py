"""The functions of `cuda` in plain PyTorch: for a CPU, and as the reference of the kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vidqa.engine.model.layers import Norm, root_mean_square_norm, rotate
from vidqa.engine.model.quantized import FLOAT8, FLOAT8_MAX, InputQuantization, QuantizedInput, token_scales
from vidqa.engine.torch_private import scaled_mm


def add_norm(
    hidden_TD: torch.Tensor,
    delta_TD: torch.Tensor | None,
    norm: Norm,
    input_quantization: InputQuantization | None = None,
) -> tuple[torch.Tensor, torch.Tensor | QuantizedInput]:
    total = hidden_TD if delta_TD is None else hidden_TD + delta_TD
    normed = root_mean_square_norm(total, norm)
    return total, normed if input_quantization is None else quantize_rows(normed, input_quantization)


def silu_mul(both: torch.Tensor, input_quantization: InputQuantization | None = None) -> torch.Tensor | QuantizedInput:
    gate, up = both.chunk(2, dim=-1)
    product = F.silu(gate) * up
    return product if input_quantization is None else quantize_rows(product, input_quantization)


def quantize_rows(source_TD: torch.Tensor, input_quantization: InputQuantization) -> QuantizedInput:
    wide_TD, static_scale = source_TD.float(), input_quantization.static_scale
    scale_T1 = token_scales(wide_TD) if static_scale is None else static_scale.expand(len(wide_TD), 1).contiguous()
    return QuantizedInput((wide_TD / scale_T1).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8), scale_T1)


def float8_product(
    codes_TD: torch.Tensor,
    scale_T1: torch.Tensor,
    weight_OD: torch.Tensor,
    scale_1O: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    return scaled_mm(codes_TD, weight_OD.t(), scale_a=scale_T1, scale_b=scale_1O, out_dtype=dtype)


def pack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Codes int32 [O, D/8] in the layout of the files: eight in a word, the first in its lowest bits."""
    return packed


def int4_product(hidden_TD: torch.Tensor, packed: torch.Tensor, scale_zero_GO2: torch.Tensor) -> torch.Tensor:
    return hidden_TD @ dequantize_int4(packed, scale_zero_GO2).t()


def dequantize_int4(packed: torch.Tensor, scale_zero_GO2: torch.Tensor) -> torch.Tensor:
    """The weight [O, D]: (code - 8) times the scale of its group, which is stored with a zero point."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    codes = ((packed[:, :, None] >> shifts) & 15).flatten(1) - 8
    scale_OG = scale_zero_GO2[:, :, 0].t()
    return (codes.unflatten(1, (scale_OG.shape[1], -1)).to(scale_OG.dtype) * scale_OG[:, :, None]).flatten(1)


def rotated(source_THE: torch.Tensor, norm: Norm | None, cos_TE: torch.Tensor, sin_TE: torch.Tensor) -> torch.Tensor:
    normed = source_THE if norm is None else root_mean_square_norm(source_THE, norm)
    return rotate(normed, cos_TE, sin_TE)


def vision_heads(
    packed_PC: torch.Tensor, heads: int, cos_PE: torch.Tensor, sin_PE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = packed_PC.unflatten(-1, (3, heads, -1)).unbind(1)
    query, key = (rotate(part.float(), cos_PE, sin_PE).to(value.dtype) for part in (query, key))
    return query, key, value.contiguous()  # a view would keep all three of them for backward


def rotate_into(
    cache_RKE: torch.Tensor,
    row_T: torch.Tensor,
    source_TKE: torch.Tensor,
    turn: tuple[Norm | None, torch.Tensor, torch.Tensor] | None,
) -> None:
    cache_RKE.index_copy_(0, row_T, rotated(source_TKE, *turn) if turn else source_TKE)


def decode_attention(
    query_BHE: torch.Tensor,
    key_RKE: torch.Tensor,
    value_RKE: torch.Tensor,
    table_BP: torch.Tensor,
    length_B: torch.Tensor,
    page: int,
) -> torch.Tensor:
    outputs = []
    for query, pages, length in zip(query_BHE, table_BP.long(), length_B.tolist(), strict=True):
        if length == 0:
            outputs.append(torch.zeros_like(query))
            continue
        rows = (pages[: -(-length // page), None] * page + torch.arange(page, device=pages.device)).flatten()[:length]
        key, value = (cache.index_select(0, rows).transpose(0, 1)[None] for cache in (key_RKE, value_RKE))
        output = F.scaled_dot_product_attention(query[None, :, None], key, value, enable_gqa=True)
        outputs.append(output[0, :, 0])
    return torch.stack(outputs)
