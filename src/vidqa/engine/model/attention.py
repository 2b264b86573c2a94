"""Attention over a packed sequence: samples lie side by side and never see each other.

The collator pads every sample to a multiple of a few tokens and puts samples of one padded length next to each other.
A `Segments` entry (start, count, length) is then a plain view [count, length] of the packed tokens, so that each entry
is one dense call of PyTorch's fused attention: no mask, no gather, no device synchronisation. Padding stands at the end
of a sample, where causal attention cannot see it. Dense calls reach cuDNN's kernels, which on Hopper are nearly twice
as fast as kernels for ragged lengths.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Segments = tuple[tuple[int, int, int], ...]  # (start, count, length): count neighbours of one length

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def segments_of(lengths: Iterable[int]) -> Segments:
    """Neighbouring segments of equal length, as (start, count, length)."""
    segments, start = [], 0
    for length, group in groupby(lengths):
        count = len(list(group))
        segments.append((start, count, length))
        start += count * length
    return tuple(segments)


def attend(
    query_THD: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor, segments: Segments, *, causal: bool
) -> torch.Tensor:
    """Softmax attention inside each segment. Heads H may be a multiple of K. Returns [T, H * D]."""
    grouped = query_THD.shape[1] != key_TKD.shape[1]
    # Split and not sliced: the gradient of a split is one concatenation, that of a slice a filled and added tensor.
    rows = [count * length for _, count, length in segments]
    outputs = []
    with sdpa_kernel(FASTEST_FIRST, set_priority=True):
        for (_, count, length), *parts in zip(segments, *(t.split(rows) for t in (query_THD, key_TKD, value_TKD)), strict=True):
            query, key, value = (part.unflatten(0, (count, length)).transpose(1, 2) for part in parts)
            output = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
            outputs.append(output.transpose(1, 2).flatten(2).flatten(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
