"""Variable-length attention for transformers' own Qwen3-VL: each sample of a packed row sees only itself.

transformers selects an attention function by name. The one registered here calls flash-attn if it is installed and
torch's varlen kernel otherwise; on a CPU, without either, one dense call per segment.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

NAME = "flash_varlen"  # with "flash" in it, transformers passes the vision tower's frame bounds in one call
_bounds: tuple[torch.Tensor, int] | None = None


def set_bounds(lengths: list[int], device: torch.device) -> None:
    """Set the lengths of the samples in the next pack for the decoder's layers."""
    global _bounds
    bounds = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32)
    _bounds = (bounds.to(device, non_blocking=True), max(lengths))


def install_packed_attention(model: Any) -> None:
    """Register the function and let both towers of `model` use it."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    for module in model.modules():
        if getattr(module, "config", None) is not None:
            module.config._attn_implementation_internal = NAME


def packed_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **named: Any
) -> tuple[torch.Tensor, None]:
    """Attention of [1, H, T, D] each (keys and values may have fewer heads), returned as [1, T, H, D]."""
    assert attention_mask is None and len(query) == 1, "a pack is one row without a mask"
    if (bounds := named.get("cu_seq_lens_q")) is not None:  # the vision tower: frames, which see all of themselves
        longest, causal = named["max_length_q"], False
    else:
        assert _bounds is not None
        (bounds, longest), causal = _bounds, True
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    return _varlen(query, key, value, bounds, longest, causal=causal)[None], None


def _varlen(query: Any, key: Any, value: Any, bounds: torch.Tensor, longest: int, *, causal: bool) -> torch.Tensor:
    """Attention of [T, H, D] each, inside segments between neighbouring `bounds`."""
    if not query.is_cuda:
        return _segment_by_segment(query, key, value, bounds.tolist(), causal=causal)
    if find_spec("flash_attn"):
        from flash_attn import flash_attn_varlen_func

        return flash_attn_varlen_func(query, key, value, bounds, bounds, longest, longest, causal=causal)
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    words = (query.contiguous(), key.contiguous(), value.contiguous(), bounds, bounds, longest, longest)
    return varlen_attn(*words, window_size=window, **_grouped())


@cache
def _grouped() -> dict[str, bool]:
    """The argument for grouped heads, which newer releases of torch need and older ones infer."""
    from inspect import signature

    from torch.nn.attention.varlen import varlen_attn

    return {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}


def _segment_by_segment(query: Any, key: Any, value: Any, bounds: list[int], *, causal: bool) -> torch.Tensor:
    outputs = []
    for start, end in pairwise(bounds):
        parts = (part[start:end].transpose(0, 1)[None] for part in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        outputs.append(F.scaled_dot_product_attention(*parts, is_causal=causal, enable_gqa=grouped)[0].transpose(0, 1))
    return torch.cat(outputs)
