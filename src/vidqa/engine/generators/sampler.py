"""Sampling: the next token of each answer from its logits, and the scores of candidates. Shared by all generators.

A draw is a function of the row's key, of the number of tokens drawn before and of the row's logits: neither other rows
of the batch nor the order of requests change it.

Shape letters: B answers, V vocabulary size, C chunks of the vocabulary, K tokens of a chunk.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vidqa.planning.requests import Request, Result, Sampling, TopLogprobs

CHUNK = 256  # tokens whose probabilities are summed together before one of them is selected


@dataclass(eq=False)
class SequenceState:
    """The state of an answer in progress."""

    request: Request
    sampler: LogitsSampler | None  # None: tokens are drawn from the model's logits directly
    temperature: float  # of the draw; after a sampler, which divides by it, 1 or 0
    key: int  # see `draw_key`
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)

    @classmethod
    def begin(cls, request: Request, device: torch.device) -> SequenceState:
        sampling = request.sampling
        drawn = sampling.temperature > 0
        plain = not sampling.is_penalised and not (drawn and (sampling.top_k or sampling.top_p < 1.0))
        sampler = None if plain and not request.constraint else LogitsSampler(request, device)
        key = draw_key(sampling.seed, request.draws or request.id) if drawn else 0
        return cls(request, sampler, float(drawn) if sampler else sampling.temperature, key)

    def add(self, token: int, logprob: float, likeliest: TopLogprobs) -> None:
        self.token_ids.append(token)
        if self.request.logprobs:
            self.logprobs.append(logprob)
        if self.request.top_logprobs:
            self.top_logprobs.append(likeliest[: self.request.top_logprobs])
        if self.request.on_token:
            self.request.on_token(token, logprob if self.request.logprobs else math.nan)

    def result(self) -> Result | None:
        """The result of a finished answer, else None."""
        request = self.request
        answer = (tuple(self.token_ids), tuple(self.logprobs), tuple(self.top_logprobs))
        if self.token_ids and self.token_ids[-1] in request.stop_ids:
            return Result(request.id, "stop", *answer)
        if len(self.token_ids) >= request.sampling.max_tokens:
            return Result(request.id, "length", *answer)
        return Result(request.id, "cancelled", *answer) if request.cancelled() else None


class LogitsSampler:
    """The scores to draw the next token of one answer from, processed in transformers' order: penalties, constraint,
    temperature, top-k and top-p."""

    def __init__(self, request: Request, device: torch.device) -> None:
        sampling = request.sampling
        self.constraint, self.device = request.constraint, device
        self.penalty = None
        if sampling.repetition_penalty != 1.0:
            self.penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
            self.sequence_1S = torch.from_numpy(request.token_ids).long().to(device)[None]
        self.counts: torch.Tensor | None = None  # [1, V] float32: occurrences of each token in the answer
        self.presence, self.frequency = sampling.presence_penalty, sampling.frequency_penalty
        self.warpers = _warpers(sampling)

    def scores(self, answer: Sequence[int], logits_1V: torch.Tensor) -> torch.Tensor:
        """Scores [1, V] of the token after `answer`; called once per token."""
        scores = logits_1V
        if self.penalty is not None:
            if answer:
                newest = torch.tensor([answer[-1:]], device=self.device)
                self.sequence_1S = torch.cat([self.sequence_1S, newest], dim=1)
            scores = self.penalty(self.sequence_1S, scores)
        if self.presence or self.frequency:
            scores = self._penalised(answer, scores)
        if self.constraint is not None:
            mask = torch.from_numpy(self.constraint.allowed(answer)).to(self.device)
            masked = torch.full_like(scores, -math.inf)
            masked[:, : len(mask)] = scores[:, : len(mask)].masked_fill(~mask, -math.inf)
            scores = masked
        return self.warpers(None, scores)

    def _penalised(self, answer: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """Apply presence and frequency penalties, which do not count the prompt's tokens."""
        if self.counts is None:
            self.counts = torch.zeros_like(scores)
        if answer:
            self.counts[0, answer[-1]] += 1
        return scores - self.frequency * self.counts - self.presence * (self.counts > 0)


def _warpers(sampling: Sampling) -> LogitsProcessorList:
    if sampling.temperature == 0:
        return LogitsProcessorList()
    chain: list[LogitsProcessor] = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chain.append(TopPLogitsWarper(sampling.top_p))
    return LogitsProcessorList(chain)


def next_tokens(states: Sequence[SequenceState], logits_BV: torch.Tensor) -> torch.Tensor:
    """The next token of each answer, int64 [B], from float32 logits."""
    scores, device = logits_BV, logits_BV.device
    if any(state.sampler for state in states):
        scores = logits_BV.clone()
        for row, state in enumerate(states):
            if state.sampler:
                scores[row] = state.sampler.scores(state.token_ids, logits_BV[row : row + 1])
    temperature_B = torch.tensor([state.temperature for state in states], device=device)
    key_B, count_B = torch.tensor([(state.key, len(state.token_ids)) for state in states], device=device).unbind(1)
    return draw(scores, temperature_B, key_B, count_B)


def append_tokens(states: Sequence[SequenceState], logits_BV: torch.Tensor, chosen_B: torch.Tensor) -> None:
    """Append the chosen token to each answer, with the log-probabilities that its request asks for, computed in
    float32. Only here does the host wait for a step."""
    columns = [chosen_B[:, None].double()]
    most = max(state.request.top_logprobs for state in states)
    if any(state.request.tempered for state in states):
        scale = [state.request.sampling.temperature if state.request.tempered else 1.0 for state in states]
        logits_BV = logits_BV / torch.tensor(scale, device=logits_BV.device)[:, None]
    if most or any(state.request.logprobs for state in states):
        total = logits_BV.logsumexp(-1, keepdim=True)
        columns.append((logits_BV.gather(1, chosen_B[:, None]) - total).double())
    if most:
        values, token_ids = logits_BV.topk(most)
        columns += [token_ids.double(), (values - total).double()]
    for state, (token, *rest) in zip(states, torch.cat(columns, dim=1).tolist(), strict=True):
        logprob, likeliest = (rest[0], rest[1:]) if rest else (math.nan, [])
        pairs = zip(map(int, likeliest[:most]), likeliest[most:], strict=True)
        state.add(int(token), logprob, tuple(pairs))


def draw_key(seed: int, name: str) -> int:
    """The random key of one answer: a signed 64-bit integer, a hash of `seed` and `name`."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def uniform(key_B: torch.Tensor, count_B: torch.Tensor) -> torch.Tensor:
    """Uniform variates in [0, 1), float64 [B]: a hash (splitmix64's mixing) of key and count, both int64 [B]."""
    mixed = key_B + (count_B + 1) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 11).double() * 2.0**-53


def _shifted(number: torch.Tensor, bits: int) -> torch.Tensor:
    """`number` shifted right logically: torch's own shift of int64 copies the sign."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def draw(
    logits_BV: torch.Tensor, temperature_B: torch.Tensor, key_B: torch.Tensor, count_B: torch.Tensor
) -> torch.Tensor:
    """The next token of each row, int64 [B], drawn from softmax(logits / temperature); the most likely if the
    temperature is 0. Logits are float32; -inf is never drawn.

    The cumulative distribution is inverted in two steps, over chunks of the vocabulary and inside one of them; sums
    are float64.
    """
    greedy_B = temperature_B == 0
    scaled_BV = logits_BV / temperature_B.masked_fill(greedy_B, 1.0)[:, None]
    weight_BV = (scaled_BV - scaled_BV.amax(-1, keepdim=True)).exp()
    weight_BCK = F.pad(weight_BV, (0, -weight_BV.shape[1] % CHUNK)).unflatten(1, (-1, CHUNK))
    upto_BC = weight_BCK.sum(-1, dtype=torch.float64).cumsum(-1)
    threshold_B1 = (uniform(key_B, count_B) * upto_BC[:, -1])[:, None]
    chunk_B1 = torch.searchsorted(upto_BC, threshold_B1, right=True).clamp(max=upto_BC.shape[1] - 1)
    before_B1 = upto_BC.gather(1, (chunk_B1 - 1).clamp(min=0)) * (chunk_B1 > 0)
    inside_BK = weight_BCK.gather(1, chunk_B1[..., None].expand(-1, -1, CHUNK))[:, 0]
    upto_BK = inside_BK.double().cumsum(-1)
    # Sums of a chunk and of its parts may round differently: never select beyond the chunk's last possible token.
    last_B = CHUNK - 1 - (inside_BK > 0).flip(-1).to(torch.uint8).argmax(-1)
    within_B = torch.minimum((upto_BK <= threshold_B1 - before_B1).sum(-1), last_B)
    return torch.where(greedy_B, logits_BV.argmax(-1), chunk_B1[:, 0] * CHUNK + within_B)


def candidate_prefixes(request: Request) -> list[tuple[int, ...]]:
    """The token ids to append to the prompt so that all candidates can be scored: each candidate without its last
    token, without duplicates; [()] if all candidates have one token."""
    prefixes = dict.fromkeys(candidate[:-1] for candidate in request.candidates)
    return [prefix for prefix in prefixes if prefix] or [()]


def score_candidates(request: Request, prefixes: Sequence[tuple[int, ...]], logits: Sequence[torch.Tensor]) -> Result:
    """The result, from float32 logits [len(prefix) + 1, V] after the prompt's last token and those of each prefix."""
    tables = {prefix: rows.log_softmax(-1) for prefix, rows in zip(prefixes, logits, strict=True)}
    sums = []
    for candidate in request.candidates:
        table = tables.get(candidate[:-1], tables[prefixes[0]])
        token_ids = torch.tensor(candidate, device=table.device)
        sums.append(table[: len(candidate)].gather(1, token_ids[:, None]).sum())
    return Result(request.id, "scored", scores=tuple(torch.stack(sums).tolist()))
