"""Attention over a packed sequence: samples lie side by side and never see each other.

The collator pads every sample to a multiple of a few tokens and puts samples of one padded length next to each other.
A `Segments` entry (start, count, length) is then a plain view [count, length] of the packed tokens, so that each entry
is one dense call of PyTorch's fused attention: no mask, no gather, no device synchronisation. Padding stands at the end
of a sample, where causal attention cannot see it. Dense calls reach cuDNN's kernels, which on Hopper are nearly twice
as fast as kernels for ragged lengths.

Samples that begin alike (questions about one video) may share that beginning: it is a segment of its own, computed
once, and the rest of each sample is a suffix behind all segments. A suffix sees its prefix and itself, nothing else:
the same attention as if the sample stood alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint

from vidqa.contract.cli import note

Segments = tuple[tuple[int, int, int], ...]  # (start, count, length): count neighbours of one length
Call = tuple[int, int]  # count, length: the shape of one entry of `Segments`

FORWARD = torch.ops.aten._scaled_dot_product_cudnn_attention
BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
_TAKEN: dict[Any, bool] = {}  # whether cuDNN has a kernel, by the length of segments and the shapes of a token
# Newer releases of PyTorch ask for it by name; older ones take fewer key heads as they come.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


@dataclass(frozen=True)
class Suffixes:
    """Ends of samples whose beginnings are shared; they stand behind all segments, one after the other. `lengths` are
    (own tokens, tokens seen) of each; the bounds are their running sums, int32 [suffixes + 1]."""

    seen_at_K: torch.Tensor  # int64: for each suffix in turn, the rows of its prefix and then its own
    lengths: tuple[tuple[int, int], ...]
    query_bounds: torch.Tensor
    key_bounds: torch.Tensor


def segments_of(lengths: Iterable[int], *, count_bits: int | None = None) -> Segments:
    """Neighbouring segments of equal length, as (start, count, length). `count_bits` bounds the significant bits of a
    count, so that few different ones occur; what is left over of a longer one is an entry of its own."""
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
    """Softmax attention inside each segment, and of each suffix over what it sees. Heads H may be a multiple of K.
    Returns [T, H * D]."""
    if suffixes is None:
        return _attend_segments(query_THD, key_TKD, value_TKD, segments, causal).flatten(1)
    dense = sum(count * length for _, count, length in segments)
    # Split and not sliced: the gradient of a split is one concatenation, that of a slice a filled and added tensor.
    (query, ends), (key, _), (value, _) = (
        part.split([dense, len(part) - dense]) for part in (query_THD, key_TKD, value_TKD)
    )
    attended = _attend_segments(query, key, value, segments, causal)
    # What suffixes see is gathered again in backward: it is the prefix once for each of them.
    inputs = (ends, key_TKD, value_TKD, suffixes)
    others = checkpoint(_attend_suffixes, *inputs, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([attended, others]).flatten(1)


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
    """Attention of one entry of `Segments` over zeros, with so many heads of queries and of keys, and their width: for
    every shape that a thread has not met cuDNN plans a kernel in it. `again` says that backward computes forward again,
    in its own thread."""
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
    """[T, H, D]."""
    parts = (query_THD, key_TKD, value_TKD)
    if takes_cudnn(parts, segments, causal):
        return _CuDNN.apply(*parts, segments, causal)
    grouped = query_THD.shape[1] != key_TKD.shape[1]
    outputs = []
    for query, key, value in _calls(segments, *parts):
        output = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
        outputs.append(_rows(output))
    return _joined(outputs)


class Kept(NamedTuple):
    """What cuDNN's backward needs besides query, key and value: what attention gave, and of each call its sums and
    what else it was called with."""

    attended: torch.Tensor
    log_sums: list[torch.Tensor]
    others: list[tuple[Any, ...]]


def takes_cudnn(parts: Sequence[torch.Tensor], segments: Segments, causal: bool) -> bool:
    """Whether cuDNN's kernels take this query, key and value in every call that `segments` makes. Where they do not,
    that is said once: PyTorch's own kernels are slower."""
    if not parts[0].is_cuda:
        return False
    grouped = parts[0].shape[1] != parts[1].shape[1]
    of_all = (tuple((part.shape[1:], part.dtype, part.requires_grad) for part in parts), causal)
    for (_, _, length), (query, key, value) in zip(segments, _calls(segments, *parts), strict=True):
        kind = (length, of_all)
        if kind not in _TAKEN:
            _TAKEN[kind] = can_use_cudnn_attention(SDPAParams(query, key, value, None, 0.0, causal, grouped))
        if not _TAKEN[kind]:
            _say_slower(length, parts[0].dtype)
            return False
    return True


@cache
def _say_slower(length: int, dtype: torch.dtype) -> None:
    note(f"attention: cuDNN has no kernel for segments of {length} tokens in {dtype}; PyTorch's own is slower")


def cudnn_forward(parts: Sequence[torch.Tensor], segments: Segments, causal: bool) -> Kept:
    """cuDNN's kernels, one call for each entry of `segments`."""
    outputs, log_sums, others = [], [], []
    for call in _calls(segments, *parts):
        output, log_sum, *bounds, seed, offset, _ = FORWARD(*call, None, True, 0.0, causal)
        outputs.append(_rows(output))
        log_sums.append(log_sum)
        others.append((seed, offset, None, *bounds, 0.0, causal))
    return Kept(_joined(outputs), log_sums, others)


def cudnn_backward(
    gradient_THD: torch.Tensor, parts: Sequence[torch.Tensor], segments: Segments, kept: Kept
) -> Iterator[torch.Tensor]:
    """The gradients of query, key and value."""
    calls = _calls(segments, gradient_THD, *parts, kept.attended)
    found = [BACKWARD(*call, *rest) for call, rest in zip(calls, _with_sums(kept), strict=True)]
    return (_joined([_rows(each) for each in part]) for part in zip(*found, strict=True))


def _with_sums(kept: Kept) -> Iterator[tuple[Any, ...]]:
    return ((log_sum, *others) for log_sum, others in zip(kept.log_sums, kept.others, strict=True))


class _CuDNN(torch.autograd.Function):
    """Written out because backward and the layer need the same output: of several calls PyTorch's own function would
    keep each output beside the joined one."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        """`inputs` are query, key and value, segments, and whether attention is causal."""
        *parts, ctx.segments, causal = inputs
        kept = cudnn_forward(parts, ctx.segments, causal)
        ctx.others = kept.others
        ctx.save_for_backward(*parts, kept.attended, *kept.log_sums)
        return kept.attended

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> Any:
        *parts, attended = (saved := ctx.saved_tensors)[:4]  # read once: a checkpoint gives them once
        kept = Kept(attended, saved[4:], ctx.others)
        return *cudnn_backward(output_gradients[0], parts, ctx.segments, kept), None, None


def _calls(segments: Segments, *tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """For each entry of `segments` its rows of the tensors [T, H, D], as [count, H, length, D]."""
    rows = [count * length for _, count, length in segments]
    for (_, count, length), *parts in zip(segments, *(tensor.split(rows) for tensor in tensors), strict=True):
        yield [part.unflatten(0, (count, length)).transpose(1, 2) for part in parts]


def _rows(called: torch.Tensor) -> torch.Tensor:
    """The rows of one call, [count, H, length, D], side by side again."""
    return called.transpose(1, 2).flatten(0, 1)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _attend_suffixes(
    query_THD: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor, suffixes: Suffixes
) -> Any:
    """Each suffix over all of its prefix and causally over itself, which is its own end of the keys. Queries are those
    of suffixes alone."""
    key_KHD, value_KHD = (part.index_select(0, suffixes.seen_at_K) for part in (key_TKD, value_TKD))
    if query_THD.is_cuda and query_THD.dtype != torch.float32:  # no kernel for ragged lengths takes float32
        longest = [max(column) for column in zip(*suffixes.lengths, strict=True)]
        bounds = (suffixes.query_bounds, suffixes.key_bounds, *longest)
        return varlen_attn(query_THD, key_KHD, value_KHD, *bounds, window_size=(-1, 0), **GROUPED)
    own, seen = zip(*suffixes.lengths, strict=True)
    outputs = []
    for parts in zip(query_THD.split(own), key_KHD.split(seen), value_KHD.split(seen), strict=True):
        query, key, value = (part.transpose(0, 1) for part in parts)
        shape, offset = (query.shape[1], key.shape[1]), key.shape[1] - query.shape[1]
        visible = torch.ones(shape, dtype=torch.bool, device=query.device).tril(offset)
        grouped = query.shape[0] != key.shape[0]
        output = F.scaled_dot_product_attention(query[None], key[None], value[None], visible, enable_gqa=grouped)
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)
