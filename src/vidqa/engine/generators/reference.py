"""The reference: transformers' own `generate`, prompts padded on the left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from vidqa.engine.data.hf_inputs import stock_inputs
from vidqa.engine.export import load_export
from vidqa.engine.generators._base import Generator, Request, Result, Settings, ready
from vidqa.engine.generators.choosing import Draft, next_tokens, write_tokens
from vidqa.engine.generators.scoring import heads_of, scored
from vidqa.planning.samples import Planner


class TransformersSession:
    """Answers with a stock model that this process holds, `batch_size` prompts at a time."""

    def __init__(self, model: Any, planner: Planner, *, longest: int, batch_size: int) -> None:
        self.model, self.planner = model, planner
        self.longest, self.batch_size = longest, batch_size

    def generate(self, requests: Iterable[Request | None]) -> Iterator[list[Result]]:
        for batch in _batches(requests, self.batch_size):
            found = [ready(request, self.longest) for request in batch]
            failed = [each for each in found if isinstance(each, Result)]
            if failed or not batch:
                yield failed
            pairs = zip(batch, found, strict=True)
            if prompts := [(request, each) for request, each in pairs if not isinstance(each, Result)]:
                yield self._score(*prompts[0]) if batch[0].candidates else self._answer(*zip(*prompts, strict=True))

    @torch.no_grad()
    def _answer(self, requests: Sequence[Request], frames: Sequence[Sequence[np.ndarray]]) -> list[Result]:
        inputs = self._inputs(requests, [each.token_ids for each in requests], frames)
        device = inputs["input_ids"].device
        drafts = [Draft.of(request, device) for request in requests]
        choices = ChoiceProcessor(drafts)
        self.model.generate(
            **inputs,
            max_new_tokens=max(each.sampling.max_tokens for each in requests),
            logits_processor=LogitsProcessorList([choices]),
            stopping_criteria=StoppingCriteriaList([Finished(choices)]),
            eos_token_id=list(requests[0].stop_ids),
            pad_token_id=self.planner.chat.pad_id,
            synced_gpus=False,  # ranks generate on their own; transformers would otherwise see FSDP and wait
            # A model folder's own sampling settings would be part of no recipe.
            do_sample=False,
            repetition_penalty=1.0,
            temperature=None,
            top_p=None,
            top_k=None,
        )
        return [choices.results[draft] for draft in drafts]

    @torch.no_grad()
    def _score(self, request: Request, frames: Sequence[np.ndarray]) -> list[Result]:
        """Prompt and candidates in one forward, as many rows at a time as answers would be."""
        heads = heads_of(request)
        logits: list[torch.Tensor] = []
        for start in range(0, len(heads), self.batch_size):
            some = heads[start : start + self.batch_size]
            rows = [np.concatenate([request.token_ids, np.array(head, np.int32)]) for head in some]
            inputs = self._inputs([request] * len(some), rows, [frames] * len(some))
            ends = self.model(**inputs, logits_to_keep=max(map(len, some)) + 1).logits.float()
            logits += [end[-len(head) - 1 :] for end, head in zip(ends, some, strict=True)]
        return [scored(request, heads, logits)]

    def _inputs(self, requests: Sequence[Request], rows: Sequence[np.ndarray], frames: Any) -> dict[str, torch.Tensor]:
        device = next(self.model.parameters()).device
        return stock_inputs(self.planner, rows, [each.plans for each in requests], frames, device)

    def close(self) -> None:
        self.model = None


def _open(settings: Settings) -> TransformersSession:
    model = load_export(settings.folder, settings.base, settings.dtype, settings.device)
    return TransformersSession(model, settings.planner, longest=settings.longest, batch_size=settings.batch_size)


TRANSFORMERS = Generator("transformers", _open)


def _batches(requests: Iterable[Request | None], size: int) -> Iterator[list[Request]]:
    """Requests in their order, those of a batch with the same stop ids; one to be scored is a batch of its own. Empty
    where there is nothing to take."""
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
    """Makes the largest score the next token of each draft. Rows whose draft is finished are left as they are."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.results: dict[Draft, Result] = {}
        self.logits = torch.empty(0)

    @property
    def writing(self) -> list[int]:
        """The rows whose drafts are not finished."""
        return [row for row, draft in enumerate(self.drafts) if draft not in self.results]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.logits = scores
        rows = self.writing
        chosen = next_tokens([self.drafts[row] for row in rows], scores[rows])
        return scores.index_put((torch.tensor(rows, device=scores.device), chosen), scores.new_tensor(math.inf))


class Finished(StoppingCriteria):
    """Writes the chosen tokens into the drafts, and says which rows are finished."""

    def __init__(self, choices: ChoiceProcessor) -> None:
        self.choices = choices

    def __call__(self, input_ids: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
        of, rows = self.choices, self.choices.writing
        if rows:
            drafts = [of.drafts[row] for row in rows]
            write_tokens(drafts, of.logits[rows], input_ids[rows, -1])
            of.results.update({draft: result for draft in drafts if (result := draft.result())})
        return torch.tensor([draft in of.results for draft in of.drafts], device=input_ids.device)
