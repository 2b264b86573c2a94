"""Attention of suffixes: ends of samples with a shared prefix, over the prefix and over themselves.

All suffixes of one prefix attend to it in one call without a mask, and each attends causally to itself; the two partial
results are merged by their log-sum-exp. Nothing is gathered and no prefix is copied for each suffix. The gradient
of softmax attention needs from forward only the output and the log-sum-exp over all keys of a row, so that each
part's backward runs separately with the values of the merged result.

Shape letters: T rows of a pack, N rows of suffixes (the last N of T), Q queries, S keys, H heads, K key heads, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from vidqa.engine.torch_private import FLASH_BACKWARD, FLASH_FORWARD


@dataclass(frozen=True)
class Suffixes:
    """Suffixes follow all segments, one after the other, those of one prefix as neighbours. `prefixes` are (first row,
    tokens, rows of its suffixes); suffixes without a prefix come last. `lengths` are the tokens of each suffix. Bounds
    are cumulative sums, int32 [count + 1]: of the prefixes' tokens, of their suffixes' rows, and of `lengths`."""

    prefixes: tuple[tuple[int, int, int], ...]
    lengths: tuple[int, ...]
    prefix_bounds: torch.Tensor
    reader_bounds: torch.Tensor
    own_bounds: torch.Tensor


class Ragged(NamedTuple):
    """The sequences of an attention call: bounds of queries and keys, the longest of each, and whether it is causal."""

    query_bounds: torch.Tensor
    key_bounds: torch.Tensor
    longest_query: int
    longest_key: int
    causal: bool


class Merged(NamedTuple):
    """The result of suffixes: output [N, H, D], its log-sum-exp float32 [H, N], and the kernels' state for backward."""

    output: torch.Tensor
    log_sum: torch.Tensor
    rest: tuple[Any, Any]


def suffixes_of(prefixes: Sequence[tuple[int, int, int]], lengths: Sequence[int]) -> Suffixes:
    """Build `Suffixes` on the CPU from prefixes and suffix lengths."""

    def bounds(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor([0, *values]).cumsum(0, dtype=torch.int32)

    tokens, readers = [prefix[1] for prefix in prefixes], [prefix[2] for prefix in prefixes]
    return Suffixes(tuple(prefixes), tuple(lengths), bounds(tokens), bounds(readers), bounds(lengths))


def suffix_forward(parts: Sequence[torch.Tensor], suffixes: Suffixes) -> Merged:
    """Attention of each suffix over all of its prefix and causally over itself. `parts` are query [N, H, D], key and
    value [T, K, D]."""
    own, shared, readers = _calls(suffixes)
    query, rows = parts[0], len(parts[0])
    output, log_sum, own_rest = _forward((query, *(part[-rows:] for part in parts[1:])), own)
    if not readers:
        return Merged(output, log_sum, (own_rest, ()))
    prefixes = [_prefix_rows(part, suffixes) for part in parts[1:]]
    over_prefix, seen_sum, prefix_rest = _forward((query[:readers], *prefixes), shared)
    total = torch.logaddexp(log_sum[:, :readers], seen_sum)
    pieces = (output[:readers], log_sum[:, :readers]), (over_prefix, seen_sum)
    merged = sum(piece * (piece_sum - total).exp().t()[..., None] for piece, piece_sum in pieces)
    output[:readers], log_sum[:, :readers] = merged, total
    return Merged(output, log_sum, (own_rest, prefix_rest))


def suffix_backward(
    gradient_NHD: torch.Tensor, parts: Sequence[torch.Tensor], suffixes: Suffixes, merged: Merged
) -> tuple[list[torch.Tensor], list[tuple[slice, list[torch.Tensor]]]]:
    """The gradients of the query and of the suffixes' own key and value, and those of each prefix's key and value with
    its rows of the pack. `parts` as in `suffix_forward`."""
    own, shared, readers = _calls(suffixes)
    query, rows, (own_rest, prefix_rest) = parts[0], len(parts[0]), merged.rest
    own_parts = (query, *(part[-rows:] for part in parts[1:]))
    gradients = _backward(gradient_NHD, own_parts, Merged(merged.output, merged.log_sum, own_rest), own)
    if not readers:
        return gradients, []
    prefix_parts = (query[:readers], *(_prefix_rows(part, suffixes) for part in parts[1:]))
    of_readers = Merged(merged.output[:readers], merged.log_sum[:, :readers].contiguous(), prefix_rest)
    of_query, *of_prefixes = _backward(gradient_NHD[:readers], prefix_parts, of_readers, shared)
    gradients[0][:readers] += of_query
    pieces = zip(*(part.split([tokens for _, tokens, _ in suffixes.prefixes]) for part in of_prefixes), strict=True)
    places = (slice(start, start + tokens) for start, tokens, _ in suffixes.prefixes)
    return gradients, list(zip(places, map(list, pieces), strict=True))


class SuffixAttention(torch.autograd.Function):
    """`suffix_forward` of (query [N, H, D], key [T, K, D], value [T, K, D], suffixes), differentiable: [N, H, D]."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        *parts, ctx.suffixes = inputs
        output, log_sum, ctx.rest = suffix_forward(parts, ctx.suffixes)
        ctx.save_for_backward(*parts, output, log_sum)
        return output

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> Any:
        *parts, output, log_sum = ctx.saved_tensors
        merged = Merged(output, log_sum, ctx.rest)
        (of_query, *own), by_prefix = suffix_backward(output_gradients[0], parts, ctx.suffixes, merged)
        gradients = [part.new_zeros(part.shape) for part in parts[1:]]
        for gradient, part in zip(gradients, own, strict=True):
            gradient[-len(part) :] = part
        add_prefixes(gradients, by_prefix)
        return of_query, *gradients, None


def add_prefixes(gradients: Sequence[torch.Tensor], by_prefix: Sequence[tuple[slice, Sequence[torch.Tensor]]]) -> None:
    """Add the gradients of `suffix_backward`'s prefixes to those of key and value [T, K, D], in place."""
    for rows, parts in by_prefix:
        for gradient, part in zip(gradients, parts, strict=True):
            gradient[rows] += part


def _calls(suffixes: Suffixes) -> tuple[Ragged, Ragged, int]:
    """The call of suffixes over themselves, the call over prefixes, and the number of rows in the latter."""
    longest = max(suffixes.lengths)
    own = Ragged(suffixes.own_bounds, suffixes.own_bounds, longest, longest, causal=True)
    tokens, rows = (max((prefix[place] for prefix in suffixes.prefixes), default=0) for place in (1, 2))
    shared = Ragged(suffixes.reader_bounds, suffixes.prefix_bounds, rows, tokens, causal=False)
    return own, shared, sum(prefix[2] for prefix in suffixes.prefixes)


def _prefix_rows(part_TKD: torch.Tensor, suffixes: Suffixes) -> torch.Tensor:
    """The rows of all prefixes, concatenated, without their padding."""
    pieces = [part_TKD[start : start + tokens] for start, tokens, _ in suffixes.prefixes]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


# --- kernels: flash attention on GPUs, plain products elsewhere (flash attention takes no float32)


def _forward(parts: Sequence[torch.Tensor], call: Ragged) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    """Attention of query [Q, H, D] over key, value [S, K, D]: output [Q, H, D], log-sum-exp [H, Q], kernel state."""
    if _is_flash(parts[0]):
        output, log_sum, *rest, _ = FLASH_FORWARD(*parts, *call[:4], 0.0, call.causal, False)
        return output, log_sum, tuple(rest)
    outputs, log_sums = [], []
    for query, key, value in _sequences(parts, call):
        scores_HQS = _scores(query, key, call.causal)
        log_sums.append(scores_HQS.logsumexp(-1))
        weights_HQS = (scores_HQS - log_sums[-1][..., None]).exp()
        outputs.append((weights_HQS @ _by_head(value, query)).transpose(0, 1))
    return torch.cat(outputs), torch.cat(log_sums, 1), ()


def _backward(
    gradient_QHD: torch.Tensor, parts: Sequence[torch.Tensor], merged: Merged, call: Ragged
) -> list[torch.Tensor]:
    """The gradients of query, key and value. `merged` may be the result over more keys than these."""
    output_QHD, log_sum_HQ, rest = merged
    if _is_flash(parts[0]):
        forward = (*parts, output_QHD, log_sum_HQ, *call[:4], 0.0, call.causal, *rest)
        return list(FLASH_BACKWARD(gradient_QHD.contiguous(), *forward))
    gradients: list[tuple[torch.Tensor, ...]] = []
    ends = call.query_bounds[1:].tolist()
    by_query = zip(*(part.split(_lengths(call.query_bounds)) for part in (gradient_QHD, output_QHD)), strict=True)
    for (query, key, value), (gradient, output), end in zip(_sequences(parts, call), by_query, ends, strict=True):
        query_HQD, gradient_HQD, output_HQD = (part.transpose(0, 1) for part in (query, gradient, output))
        log_sum = log_sum_HQ[:, end - len(query) : end, None]
        weights_HQS = (_scores(query, key, call.causal) - log_sum).exp()
        of_weights_HQS = gradient_HQD @ _by_head(value, query).transpose(1, 2)
        of_scores_HQS = weights_HQS * (of_weights_HQS - (gradient_HQD * output_HQD).sum(-1, keepdim=True))
        of_scores_HQS = of_scores_HQS * query.shape[-1] ** -0.5
        by_head = (of_scores_HQS.transpose(1, 2) @ query_HQD, weights_HQS.transpose(1, 2) @ gradient_HQD)
        of_key, of_value = (part.unflatten(0, (key.shape[1], -1)).sum(1).transpose(0, 1) for part in by_head)
        gradients.append(((of_scores_HQS @ _by_head(key, query)).transpose(0, 1), of_key, of_value))
    return [torch.cat(pieces) for pieces in zip(*gradients, strict=True)]


def _is_flash(query: torch.Tensor) -> bool:
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


def _lengths(bounds: torch.Tensor) -> list[int]:
    return bounds.diff().tolist()


def _sequences(parts: Sequence[torch.Tensor], call: Ragged) -> Iterator[tuple[torch.Tensor, ...]]:
    """Query, key and value of each sequence."""
    query, key, value = parts
    keys = _lengths(call.key_bounds)
    return zip(query.split(_lengths(call.query_bounds)), key.split(keys), value.split(keys), strict=True)


def _by_head(part_SKD: torch.Tensor, query_QHD: torch.Tensor) -> torch.Tensor:
    """Repeat each key head for all query heads that read it: [H, S, D]."""
    return part_SKD.transpose(0, 1).repeat_interleave(query_QHD.shape[1] // part_SKD.shape[1], dim=0)


def _scores(query_QHD: torch.Tensor, key_SKD: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention scores [H, Q, S]; a causal call has as many keys as queries."""
    query_HQD = query_QHD.transpose(0, 1) * query_QHD.shape[-1] ** -0.5
    scores_HQS = query_HQD @ _by_head(key_SKD, query_QHD).transpose(1, 2)
    if not causal:
        return scores_HQS
    hidden = torch.ones(scores_HQS.shape[1:], dtype=torch.bool, device=scores_HQS.device).triu(1)
    return scores_HQS.masked_fill(hidden, -math.inf)
