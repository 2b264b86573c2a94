"""The reference: transformers' own `generate`, prompts padded on the left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vidqa.engine.exports import load_export
from vidqa.engine.generators._base import Generator, Request, Result, Settings, ready
from vidqa.engine.model.stock_inputs import stock_inputs
from vidqa.planning.samples import Planner


class TransformersSession:
    """Answers with a stock model that this process holds, `batch_size` prompts at a time."""

    def __init__(self, model: Any, planner: Planner, *, longest: int, batch_size: int) -> None:
        self.model, self.planner = model, planner
        self.longest, self.batch_size = longest, batch_size

    def generate(self, requests: Iterable[Request]) -> Iterator[list[Result]]:
        for batch in _batches(requests, self.batch_size):
            found = [ready(request, self.longest) for request in batch]
            if failed := [each for each in found if isinstance(each, Result)]:
                yield failed
            pairs = zip(batch, found, strict=True)
            if prompts := [(request, each) for request, each in pairs if not isinstance(each, Result)]:
                yield self._answer(*zip(*prompts, strict=True))

    @torch.no_grad()
    def _answer(self, requests: Sequence[Request], frames: Sequence[Sequence[np.ndarray]]) -> list[Result]:
        device, sampling = next(self.model.parameters()).device, requests[0].sampling
        inputs = stock_inputs(
            self.planner, [each.token_ids for each in requests], [each.plans for each in requests], frames, device
        )
        recorder = ChosenLogprobs() if any(request.logprobs for request in requests) else None
        output = self.model.generate(
            **inputs,
            max_new_tokens=sampling.max_tokens,
            logits_processor=processors_of(requests, device, recorder),
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
        width = inputs["input_ids"].shape[1]
        rows = output[:, width:].tolist()
        logprobs: list[list[float]] = recorder.of(output, width) if recorder else [[] for _ in rows]
        return [_result(*each) for each in zip(requests, rows, logprobs, strict=True)]

    def close(self) -> None:
        self.model = None


def _open(settings: Settings) -> TransformersSession:
    model = load_export(settings.folder, settings.base, settings.dtype, settings.device)
    return TransformersSession(model, settings.planner, longest=settings.longest, batch_size=settings.batch_size)


TRANSFORMERS = Generator("transformers", _open)


def _batches(requests: Iterable[Request], size: int) -> Iterator[list[Request]]:
    """Requests in their order; those of a batch are sampled in the same way, each with its own seed."""
    for _, group in groupby(requests, lambda request: (replace(request.sampling, seed=0), request.stop_ids)):
        while batch := list(islice(group, size)):
            yield batch


def _result(request: Request, row: list[int], logprobs: list[float]) -> Result:
    stop = next((place for place, token in enumerate(row) if token in request.stop_ids), None)
    end = len(row) if stop is None else stop + 1
    kept = tuple(logprobs[:end]) if request.logprobs else ()
    return Result(request.id, "length" if stop is None else "stop", tuple(row[:end]), kept)


def processors_of(
    requests: Sequence[Request], device: torch.device, recorder: ChosenLogprobs | None = None
) -> LogitsProcessorList:
    """What turns logits into scores whose largest is the next token, in the order in which transformers does it."""
    sampling = requests[0].sampling
    chain: list[LogitsProcessor] = [recorder] if recorder else []
    if sampling.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature > 0:
        chain.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            chain.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            chain.append(TopPLogitsWarper(sampling.top_p))
        chain.append(SeededDraws([(each.sampling.seed, each.id) for each in requests], device))
    return LogitsProcessorList(chain)


class SeededDraws(LogitsProcessor):
    """Makes the largest score a draw from the distribution: the logarithm of an exponential variate is taken from every
    score. Each row has its variates from a generator that its (seed, id) alone starts."""

    def __init__(self, seeds: Sequence[tuple[int, str]], device: torch.device) -> None:
        self.generators = [torch.Generator(device) for _ in seeds]
        for generator, (seed, request_id) in zip(self.generators, seeds, strict=True):
            digest = hashlib.sha256(f"{seed} {request_id}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8], "big"))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        variates = torch.empty_like(scores)
        for row, generator in zip(variates, self.generators, strict=True):
            row.exponential_(generator=generator)
        return scores - variates.log()


class ChosenLogprobs(LogitsProcessor):
    """Keeps the log-probability of every token that was chosen. A step's distribution is held until the next step shows
    the choice: those of all steps would not fit beside the model."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None
        self.chosen: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._choose(input_ids)
        self.last = scores.log_softmax(-1)
        return scores

    def _choose(self, ids: torch.Tensor) -> None:
        if self.last is not None:
            self.chosen.append(self.last.gather(1, ids[:, -1:])[:, 0])

    def of(self, output: torch.Tensor, width: int) -> list[list[float]]:
        """Those of the tokens after the first `width` of every row."""
        self._choose(output)
        assert len(self.chosen) == output.shape[1] - width
        return torch.stack(self.chosen, dim=1).tolist()
