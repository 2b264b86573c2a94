"""How the next token of an answer is chosen, and what is kept of it: the same in every generator of this process.

Shape letters: B answers, V tokens that the model knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vidqa.engine.generators._base import Request, Result, Sampling
from vidqa.engine.generators.drawing import draw, draw_key


@dataclass(eq=False)
class Draft:
    """An answer that is being written."""

    request: Request
    chooser: Chooser | None  # None: the model's logits are drawn from as they are
    temperature: float  # of the draw; with a chooser, whose scores are divided by it already, 1 or 0
    key: int  # see `drawing.draw_key`
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, device: torch.device) -> Draft:
        sampling = request.sampling
        drawn = sampling.temperature > 0
        plain = not sampling.is_penalised and not (drawn and (sampling.top_k or sampling.top_p < 1.0))
        chooser = None if plain and not request.constraint else Chooser(request, device)
        key = draw_key(sampling.seed, request.draws or request.id) if drawn else 0
        return cls(request, chooser, float(drawn) if chooser else sampling.temperature, key)

    def add(self, token: int, logprob: float, likeliest: tuple[tuple[int, float], ...]) -> None:
        self.token_ids.append(token)
        if self.request.logprobs:
            self.logprobs.append(logprob)
        if self.request.top_logprobs:
            self.top_logprobs.append(likeliest[: self.request.top_logprobs])
        if self.request.on_token:
            self.request.on_token(token, logprob if self.request.logprobs else math.nan)

    def result(self) -> Result | None:
        """What came of it, once it is finished."""
        request = self.request
        kept = (tuple(self.token_ids), tuple(self.logprobs), tuple(self.top_logprobs))
        if self.token_ids and self.token_ids[-1] in request.stop_ids:
            return Result(request.id, "stop", *kept)
        if len(self.token_ids) >= request.sampling.max_tokens:
            return Result(request.id, "length", *kept)
        return Result(request.id, "cancelled", *kept) if request.cancelled() else None


class Chooser:
    """Turns logits into the scores that the next token of one answer is drawn from, in the order in which transformers
    does: penalties, constraint, temperature, cuts."""

    def __init__(self, request: Request, device: torch.device) -> None:
        sampling = request.sampling
        self.constraint, self.device = request.constraint, device
        self.penalty = None
        if sampling.repetition_penalty != 1.0:
            self.penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
            self.seen = torch.from_numpy(request.token_ids).long().to(device)[None]
        self.counts: torch.Tensor | None = None  # [1, V] float32: how often the answer has each token
        self.presence, self.frequency = sampling.presence_penalty, sampling.frequency_penalty
        self.warpers = _warpers(sampling)

    def scores(self, answer: Sequence[int], logits_1V: torch.Tensor) -> torch.Tensor:
        """Scores [1, V] of what may follow the tokens of the answer so far; asked once for every token."""
        scores = logits_1V
        if self.penalty is not None:
            if answer:
                self.seen = torch.cat([self.seen, torch.tensor([answer[-1:]], device=self.device)], dim=1)
            scores = self.penalty(self.seen, scores)
        if self.presence or self.frequency:
            scores = self._less_often(answer, scores)
        if self.constraint is not None:
            mask = self.constraint.allowed(answer).to(self.device)
            cut = torch.full_like(scores, -math.inf)
            cut[:, : len(mask)] = scores[:, : len(mask)].masked_fill(~mask, -math.inf)
            scores = cut
        return self.warpers(None, scores)

    def _less_often(self, answer: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """Presence and frequency penalties, which the prompt's tokens do not count for."""
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


def next_tokens(drafts: Sequence[Draft], logits_BV: torch.Tensor) -> torch.Tensor:
    """The next token of each draft, int64 [B], chosen from float32 logits."""
    scores, device = logits_BV, logits_BV.device
    if any(draft.chooser for draft in drafts):
        scores = logits_BV.clone()
        for row, draft in enumerate(drafts):
            if draft.chooser:
                scores[row] = draft.chooser.scores(draft.token_ids, logits_BV[row : row + 1])
    temperature_B = torch.tensor([draft.temperature for draft in drafts], device=device)
    key_B, count_B = torch.tensor([(draft.key, len(draft.token_ids)) for draft in drafts], device=device).unbind(1)
    return draw(scores, temperature_B, key_B, count_B)


def write_tokens(drafts: Sequence[Draft], logits_BV: torch.Tensor, chosen_B: torch.Tensor) -> None:
    """Add the chosen token to each draft, with what its request wants to know of it. Here the host waits for a step,
    once. What is counted of the logits is float32."""
    columns = [chosen_B[:, None].double()]
    most = max(draft.request.top_logprobs for draft in drafts)
    if any(draft.request.tempered for draft in drafts):
        scale = [draft.request.sampling.temperature if draft.request.tempered else 1.0 for draft in drafts]
        logits_BV = logits_BV / torch.tensor(scale, device=logits_BV.device)[:, None]
    if most or any(draft.request.logprobs for draft in drafts):
        total = logits_BV.logsumexp(-1, keepdim=True)
        columns.append((logits_BV.gather(1, chosen_B[:, None]) - total).double())
    if most:
        values, token_ids = logits_BV.topk(most)
        columns += [token_ids.double(), (values - total).double()]
    for draft, (token, *rest) in zip(drafts, torch.cat(columns, dim=1).tolist(), strict=True):
        logprob, likeliest = (rest[0], rest[1:]) if rest else (math.nan, [])
        pairs = zip(map(int, likeliest[:most]), likeliest[most:], strict=True)
        draft.add(int(token), logprob, tuple(pairs))
