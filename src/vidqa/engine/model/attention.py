"""Attention over a packed sequence: samples are neighbours and never see each other.

The collator pads every sample to a multiple of a few tokens and makes samples of one padded length neighbours.
A `Segments` entry (start, count, length) is then a plain view [count, length] of the packed tokens, so that each entry
is one dense call of PyTorch's fused attention: no mask, no gather, no device synchronisation. Padding is at the end
of a sample, where causal attention cannot see it. Dense calls reach cuDNN's kernels, which on Hopper are nearly twice
as fast as kernels for ragged lengths.

Samples with a common prefix (questions about one video) may share it: the prefix is a separate segment, computed
once, and the rest of each sample is a suffix after all segments. A suffix sees only its prefix and itself:
the same attention as for the sample alone (`model.suffixes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention
from torch.utils.checkpoint import checkpoint

from vidqa.core.cli import note
from vidqa.engine.model.suffixes import (
    Merged,
    SuffixAttention,
    Suffixes,
    add_prefixes,
    suffix_backward,
    suffix_forward,
)
from vidqa.engine.torch_private import CUDNN_BACKWARD, CUDNN_FORWARD

Segments = tuple[tuple[int, int, int], ...]  # (start, count, length): count neighbours of one length
Call = tuple[int, int]  # count, length: the shape of one entry of `Segments`

_CUDNN_KERNELS: dict[Any, bool] = {}  # whether cuDNN has a kernel, by the length of segments and the shapes of a token


def segments_of(lengths: Iterable[int], *, count_bits: int | None = None) -> Segments:
    """Group neighbouring segments of equal length as (start, count, length). `count_bits` bounds the significant bits
    of a count, so that few different counts occur; the remainder of a longer run is an entry of its own."""
    segments, start = [], 0
    for length, group in groupby(lengths):
        left = len(list(group))
        while left:
            zeros = max(0, left.bit_length() - count_bits) if count_bits else 0
            count = left >> zeros << zeros
            segments.append((start, count, length))
            start, left = start + count * length, left - count
    return tuple(segments)


def attend(
    query_THD: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    segments: Segments,
    suffixes: Suffixes | None = None,
    *,
    causal: bool,
) -> torch.Tensor:
    """Softmax attention inside each segment, and of each suffix over its prefix and itself. The number of query heads H
    may be a multiple of K. Returns [T, H * D]."""
    parts = (query_THD, key_TKD, value_TKD)
    if takes_cudnn(parts, segments, suffixes, causal):
        return _CuDNN.apply(*parts, segments, suffixes, causal).flatten(1)
    if suffixes is None:
        return _attend_segments(*parts, segments, causal).flatten(1)
    dense = rows_of(segments)
    attended = _attend_segments(query_THD[:dense], key_TKD[:dense], value_TKD[:dense], segments, causal)
    return torch.cat([attended, SuffixAttention.apply(query_THD[dense:], key_TKD, value_TKD, suffixes)]).flatten(1)


def rows_of(segments: Segments) -> int:
    """The number of rows of all segments; suffixes follow them."""
    return sum(count * length for _, count, length in segments)


def attend_zeros(
    call: Call,
    heads: tuple[int, int, int],
    device: torch.device,
    *,
    causal: bool,
    dtype: torch.dtype = torch.bfloat16,
    trains: bool = False,
    again: bool = False,
) -> torch.Tensor:
    """Attention over zeros of one (count, length) shape, which warms cuDNN's plan cache of the calling thread. `heads`
    are the numbers of query and key heads, and their width. With `again`, backward repeats forward in the autograd
    thread. Returns [count * length, H * D]."""
    (count, length), (queries, keys, width) = call, heads
    once = partial(attend, segments=((0, count, length),), causal=causal)
    inputs = [
        torch.zeros(count * length, number, width, device=device, dtype=dtype, requires_grad=trains)
        for number in (queries, keys, keys)
    ]
    return checkpoint(once, *inputs, use_reentrant=False) if again and trains else once(*inputs)


def _attend_segments(
    query_THD: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor, segments: Segments, causal: bool
) -> torch.Tensor:
    """Attention inside segments by PyTorch's own choice of kernel: [T, H, D]."""
    parts = (query_THD, key_TKD, value_TKD)
    grouped = query_THD.shape[1] != key_TKD.shape[1]
    outputs = []
    for query, key, value in _calls(segments, *parts):
        output = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
        outputs.append(_rows(output))
    return _joined(outputs)


class SavedForBackward(NamedTuple):
    """Inputs of the backward kernels besides query, key and value: the output and, for each call, its log-sum-exp and
    its other arguments. Suffixes, if any, are the last call."""

    attended: torch.Tensor
    log_sums: list[torch.Tensor]
    others: list[tuple[Any, ...]]


def takes_cudnn(parts: Sequence[torch.Tensor], segments: Segments, suffixes: Suffixes | None, causal: bool) -> bool:
    """Whether cuDNN has kernels for this query, key and value in every call of `segments`. A note says once if it has
    none: PyTorch's other kernels are slower."""
    if not parts[0].is_cuda:
        return False
    if suffixes is not None:
        parts = [part[: rows_of(segments)] for part in parts]
    grouped = parts[0].shape[1] != parts[1].shape[1]
    of_all = (tuple((part.shape[1:], part.dtype, part.requires_grad) for part in parts), causal)
    for (_, _, length), (query, key, value) in zip(segments, _calls(segments, *parts), strict=True):
        kind = (length, of_all)
        if kind not in _CUDNN_KERNELS:
            _CUDNN_KERNELS[kind] = can_use_cudnn_attention(SDPAParams(query, key, value, None, 0.0, causal, grouped))
        if not _CUDNN_KERNELS[kind]:
            _say_slower(length, parts[0].dtype)
            return False
    return True


@cache
def _say_slower(length: int, dtype: torch.dtype) -> None:
    note(f"attention: cuDNN has no kernel for segments of {length} tokens in {dtype}; PyTorch's own is slower")


def cudnn_forward(
    parts: Sequence[torch.Tensor], segments: Segments, suffixes: Suffixes | None, causal: bool
) -> SavedForBackward:
    """Attention forward pass with cuDNN: one call for each entry of `segments`, and one for all suffixes."""
    outputs, log_sums, others = [], [], list[tuple[Any, ...]]()
    dense = rows_of(segments)
    for call in _calls(segments, *(part[:dense] for part in parts)):
        output, log_sum, *bounds, seed, offset, _ = CUDNN_FORWARD(*call, None, True, 0.0, causal)
        outputs.append(_rows(output))
        log_sums.append(log_sum)
        others.append((seed, offset, None, *bounds, 0.0, causal))
    if suffixes is not None:
        merged = suffix_forward((parts[0][dense:], *parts[1:]), suffixes)
        outputs.append(merged.output)
        log_sums.append(merged.log_sum)
        others.append(merged.rest)
    return SavedForBackward(_joined(outputs), log_sums, others)


def cudnn_backward(
    gradient_THD: torch.Tensor,
    parts: Sequence[torch.Tensor],
    segments: Segments,
    suffixes: Suffixes | None,
    forward: SavedForBackward,
) -> list[torch.Tensor]:
    """The gradients of query, key and value."""
    dense = rows_of(segments)
    calls = _calls(segments, *(part[:dense] for part in (gradient_THD, *parts, forward.attended)))
    gradients = [CUDNN_BACKWARD(*call, *rest) for call, rest in zip(calls, _with_sums(forward), strict=False)]
    pieces = [[_rows(piece) for piece in part] for part in zip(*gradients, strict=True)]
    if suffixes is None:
        return [_joined(part) for part in pieces]
    merged = Merged(forward.attended[dense:], forward.log_sums[-1], forward.others[-1])
    own, by_prefix = suffix_backward(gradient_THD[dense:], (parts[0][dense:], *parts[1:]), suffixes, merged)
    for part, piece in zip(pieces, own, strict=True):
        part.append(piece)
    joined = [_joined(part) for part in pieces]
    add_prefixes(joined[1:], by_prefix)
    return joined


def _with_sums(forward: SavedForBackward) -> Iterator[tuple[Any, ...]]:
    return ((log_sum, *others) for log_sum, others in zip(forward.log_sums, forward.others, strict=True))


class _CuDNN(torch.autograd.Function):
    """Attention by cuDNN as an explicit autograd function, because backward and the layer need the same output: with
    several calls PyTorch's own function would save each output besides the concatenated one."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        """`inputs` are query, key and value, segments, suffixes, and whether attention is causal."""
        *parts, ctx.segments, ctx.suffixes, causal = inputs
        result = cudnn_forward(parts, ctx.segments, ctx.suffixes, causal)
        ctx.others = result.others
        ctx.save_for_backward(*parts, result.attended, *result.log_sums)
        return result.attended

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> Any:
        *parts, attended = (saved := ctx.saved_tensors)[:4]  # read once: a checkpoint provides them only once
        forward = SavedForBackward(attended, saved[4:], ctx.others)
        return *cudnn_backward(output_gradients[0], parts, ctx.segments, ctx.suffixes, forward), None, None, None


def _calls(segments: Segments, *tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The rows of the tensors [T, H, D] of each entry of `segments`, as [count, H, length, D]."""
    rows = [count * length for _, count, length in segments]
    for (_, count, length), *parts in zip(segments, *(tensor.split(rows) for tensor in tensors), strict=True):
        yield [part.unflatten(0, (count, length)).transpose(1, 2) for part in parts]


def _rows(called: torch.Tensor) -> torch.Tensor:
    """The rows of one call, [count, H, length, D], as packed rows [count * length, H, D]."""
    return called.transpose(1, 2).flatten(0, 1)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
