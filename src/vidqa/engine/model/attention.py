"""Attention over a packed sequence: samples lie side by side and never see each other.

The collator pads every sample to a multiple of a few tokens and puts samples of one padded length next to each other.
A `Segments` entry (start, count, length) is then a plain view [count, length] of the packed tokens, so that each entry
is one dense call of PyTorch's fused attention: no mask, no gather, no device synchronisation. Padding stands at the end
of a sample, where causal attention cannot see it. Dense calls reach cuDNN's kernels, which on Hopper are nearly twice
as fast as kernels for ragged lengths.

Samples that begin alike (questions about one video) may share that beginning: it is a segment of its own, computed
once, and the rest of each sample is a tail behind all segments. A tail sees its prefix and itself, nothing else: the
same attention as if the sample stood alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

Segments = tuple[tuple[int, int, int], ...]  # (start, count, length): count neighbours of one length

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


# Newer releases of PyTorch ask for it by name; older ones take fewer key heads as they come.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


@dataclass(frozen=True)
class Tails:
    """Ends of samples whose beginnings are shared; they stand behind all segments, one after the other. `lengths` are
    (own tokens, tokens seen) of each; the bounds are their running sums, int32 [tails + 1]."""

    seen_at_K: torch.Tensor  # int64: for each tail in turn, the rows of its prefix and then its own
    lengths: tuple[tuple[int, int], ...]
    query_bounds: torch.Tensor
    key_bounds: torch.Tensor


def segments_of(lengths: Iterable[int]) -> Segments:
    """Neighbouring segments of equal length, as (start, count, length). For every count and length that it has not met
    cuDNN plans a kernel, and the GPU waits a sixth of a second for that, so counts have three binary digits and zeros.
    """
    segments, start = [], 0
    for length, group in groupby(lengths):
        left = len(list(group))
        while left:
            zeros = max(0, left.bit_length() - 3)
            count = left >> zeros << zeros
            segments.append((start, count, length))
            start, left = start + count * length, left - count
    return tuple(segments)


def attend(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    segments: Segments,
    tails: Tails | None = None,
    *,
    causal: bool,
) -> torch.Tensor:
    """Softmax attention inside each segment, and of each tail over what it sees. Heads H may be a multiple of K.
    Returns [T, H * D]."""
    grouped = query_THD.shape[1] != key_TKD.shape[1]
    # Split and not sliced: the gradient of a split is one concatenation, that of a slice a filled and added tensor.
    rows = [count * length for _, count, length in segments]
    rest = len(query_THD) - sum(rows)
    outputs = []
    packed = [tensor.split([*rows, rest]) for tensor in (query_THD, key_TKD, value_TKD)]
    with sdpa_kernel(FASTEST_FIRST, set_priority=True):
        for (_, count, length), *parts in zip(segments, *packed, strict=False):
            query, key, value = (part.unflatten(0, (count, length)).transpose(1, 2) for part in parts)
            output = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
            outputs.append(output.transpose(1, 2).flatten(2).flatten(0, 1))
    if tails is not None:
        key, value = (tensor.index_select(0, tails.seen_at_K) for tensor in (key_TKD, value_TKD))
        outputs.append(_attend_tails(packed[0][-1], key, value, tails).flatten(1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_tails(query_THD: torch.Tensor, key_KHD: torch.Tensor, value_KHD: torch.Tensor, tails: Tails) -> Any:
    """Each tail over all of its prefix and causally over itself, which is its own end of the keys."""
    if query_THD.is_cuda:
        longest = [max(column) for column in zip(*tails.lengths, strict=True)]
        bounds = (tails.query_bounds, tails.key_bounds, *longest)
        return varlen_attn(query_THD, key_KHD, value_KHD, *bounds, window_size=(-1, 0), **GROUPED)
    own, seen = zip(*tails.lengths, strict=True)
    outputs = []
    for parts in zip(query_THD.split(own), key_KHD.split(seen), value_KHD.split(seen), strict=True):
        query, key, value = (part.transpose(0, 1) for part in parts)
        visible = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(key.shape[1] - query.shape[1])
        grouped = query.shape[0] != key.shape[0]
        output = F.scaled_dot_product_attention(query[None], key[None], value[None], visible, enable_gqa=grouped)
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)
