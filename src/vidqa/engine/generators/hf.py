"""The reference generator: transformers' own `generate`, with prompts padded on the left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from vidqa.engine.data.collate import stock_inputs
from vidqa.engine.export import load_export
from vidqa.engine.generators._base import Settings, ready
from vidqa.engine.generators.sampler import (
    SequenceState,
    append_tokens,
    candidate_prefixes,
    next_tokens,
    score_candidates,
)
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import Planner


class TransformersSession:
    """Answers with a stock model in this process, `batch_size` prompts at a time."""

    def __init__(self, model: Any, planner: Planner, *, longest: int, batch_size: int) -> None:
        self.model, self.planner = model, planner
        self.longest, self.batch_size = longest, batch_size

    def generate(self, requests: Iterable[Request | None]) -> Iterator[list[Result]]:
        for batch in _batches(requests, self.batch_size):
            pairs = [(request, ready(request, self.longest)) for request in batch]
            failed = [frames for _, frames in pairs if isinstance(frames, Result)]
            if failed or not batch:
                yield failed
            if prompts := [(request, frames) for request, frames in pairs if not isinstance(frames, Result)]:
                yield self._score(*prompts[0]) if batch[0].candidates else self._answer(*zip(*prompts, strict=True))

    @torch.no_grad()
    def _answer(self, requests: Sequence[Request], frames: Sequence[Sequence[np.ndarray]]) -> list[Result]:
        inputs = self._inputs(requests, [request.token_ids for request in requests], frames)
        device = inputs["input_ids"].device
        states = [SequenceState.begin(request, device) for request in requests]
        choices = ChoiceProcessor(states)
        self.model.generate(
            **inputs,
            max_new_tokens=max(request.sampling.max_tokens for request in requests),
            logits_processor=LogitsProcessorList([choices]),
            stopping_criteria=StoppingCriteriaList([Finished(choices)]),
            eos_token_id=list(requests[0].stop_ids),
            pad_token_id=self.planner.chat.pad_id,
            synced_gpus=False,  # ranks generate independently; with FSDP transformers would synchronise them
            # Sampling settings of the model folder are not part of the recipe: they are neutralised.
            do_sample=False,
            repetition_penalty=1.0,
            temperature=None,
            top_p=None,
            top_k=None,
        )
        return [choices.results[state] for state in states]

    @torch.no_grad()
    def _score(self, request: Request, frames: Sequence[np.ndarray]) -> list[Result]:
        """Score the candidates of a request, up to `batch_size` rows of prompt and candidate per forward pass."""
        prefixes = candidate_prefixes(request)
        logits: list[torch.Tensor] = []
        for start in range(0, len(prefixes), self.batch_size):
            some = prefixes[start : start + self.batch_size]
            rows = [np.concatenate([request.token_ids, np.array(prefix, np.int32)]) for prefix in some]
            inputs = self._inputs([request] * len(some), rows, [frames] * len(some))
            ends = self.model(**inputs, logits_to_keep=max(map(len, some)) + 1).logits.float()
            logits += [end[-len(prefix) - 1 :] for end, prefix in zip(ends, some, strict=True)]
        return [score_candidates(request, prefixes, logits)]

    def _inputs(self, requests: Sequence[Request], rows: Sequence[np.ndarray], frames: Any) -> dict[str, torch.Tensor]:
        device = next(self.model.parameters()).device
        return stock_inputs(self.planner, rows, [request.plans for request in requests], frames, device)

    def close(self) -> None:
        self.model = None


def open_transformers(settings: Settings) -> TransformersSession:
    model = load_export(settings.folder, settings.base, settings.dtype, settings.device)
    return TransformersSession(model, settings.planner, longest=settings.longest, batch_size=settings.batch_size)


def _batches(requests: Iterable[Request | None], size: int) -> Iterator[list[Request]]:
    """Batch requests in order, with equal stop ids in a batch; a request to be scored is a batch of its own. Yields an
    empty batch if no request is available."""
    batch: list[Request] = []
    for request in requests:
        if request is None:
            yield batch
            batch = []
            continue
        if batch and (request.candidates or request.stop_ids != batch[0].stop_ids):
            yield batch
            batch = []
        batch.append(request)
        if len(batch) == size or request.candidates:
            yield batch
            batch = []
    if batch:
        yield batch


class ChoiceProcessor(LogitsProcessor):
    """Gives the chosen next token of each unfinished row the highest score."""

    def __init__(self, states: Sequence[SequenceState]) -> None:
        self.states = states
        self.results: dict[SequenceState, Result] = {}
        self.logits = torch.empty(0)

    @property
    def unfinished(self) -> list[int]:
        """The rows without a result."""
        return [row for row, state in enumerate(self.states) if state not in self.results]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.logits = scores
        rows = self.unfinished
        chosen = next_tokens([self.states[row] for row in rows], scores[rows])
        return scores.index_put((torch.tensor(rows, device=scores.device), chosen), scores.new_tensor(math.inf))


class Finished(StoppingCriteria):
    """Adds the chosen tokens to the states, and reports to transformers which rows are finished."""

    def __init__(self, choices: ChoiceProcessor) -> None:
        self.choices = choices

    def __call__(self, input_ids: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
        choices, rows = self.choices, self.choices.unfinished
        if rows:
            states = [choices.states[row] for row in rows]
            append_tokens(states, choices.logits[rows], input_ids[rows, -1])
            choices.results.update({state: result for state in states if (result := state.result())})
        return torch.tensor([state in choices.results for state in choices.states], device=input_ids.device)
