"""Generation requests from planned samples, with videos decoded ahead, and answers from the results of requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from vidqa.data.record import Record
from vidqa.engine.answering.answers import Answer, answer_of
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.prefetch import decode_ahead
from vidqa.evaluation.answers import allowed_answers
from vidqa.families.chat import Chat
from vidqa.planning.requests import Request, Result, Sampling
from vidqa.planning.samples import Planner, Sample


class Prompts:
    """Requests for samples; `planner` must be one for generation. The videos of the next samples are decoded while one
    is answered. With `candidates`, closed questions are scored. `waited` is the total time of waiting for frames, in
    seconds."""

    def __init__(
        self, planner: Planner, source: FrameSource, sampling: Sampling, candidates: Candidates | None = None
    ) -> None:
        self.planner, self.source, self.sampling = planner, source, sampling
        self.candidates = candidates
        self.stop_ids = tuple(sorted(planner.chat.eos_ids))
        self.waited = 0.0

    def requests(self, samples: Iterable[Sample]) -> Iterator[Request]:
        """The requests of samples. Decoding of the first videos starts now, before a model is loaded."""
        return self._requests(decode_ahead(samples, self.source))

    def _requests(self, begun: Iterable[tuple[Sample, list[Any]]]) -> Iterator[Request]:
        for sample, ticket in begun:
            yield Request(
                sample.record.id,
                self.planner.encode(sample).token_ids,
                self.sampling,
                self.stop_ids,
                sample.plans,
                partial(self._frames, ticket),
                prefix=sample.prefix,
                prefix_key=sample.prefix_key,
                candidates=self.candidates.token_ids(sample.record) if self.candidates else (),
            )

    def answer(self, result: Result) -> Answer:
        """The answer of a result without problems."""
        scored = self.candidates if result.finish_reason == "scored" else None
        return scored.answer(result) if scored else answer_of(result, self.planner.chat)

    def _frames(self, ticket: list[Any]) -> Sequence[np.ndarray]:
        started = time.perf_counter()
        try:
            return self.source.frames(ticket)
        finally:
            self.waited += time.perf_counter() - started


class Candidates:
    """Scored answers: the most likely of a question's allowed answers, without generating. Holds the candidates of
    submitted questions until their results arrive."""

    def __init__(self, chat: Chat, task_type: str) -> None:
        self.chat, self.task_type = chat, task_type
        self.forms: dict[str, dict[tuple[int, ...], str]] = {}

    def token_ids(self, record: Record) -> tuple[tuple[int, ...], ...]:
        """The allowed beginnings of a response, in token ids; none for an open question."""
        allowed = allowed_answers(record.question, record.answer, self.task_type)
        forms = {self.chat.text_ids(form): answer for answer, spellings in allowed.items() for form in spellings}
        if forms:
            self.forms[record.id] = forms
        return tuple(forms)

    def answer(self, result: Result) -> Answer:
        """The most likely answer. The probability of an answer is the sum over its forms."""
        forms = self.forms.pop(result.id)
        scores: dict[str, list[float]] = {answer: [] for answer in forms.values()}
        for answer, score in zip(forms.values(), result.scores, strict=True):
            scores[answer].append(score)
        logprobs = {answer: float(np.logaddexp.reduce(logs)) for answer, logs in scores.items()}
        return Answer(result.id, max(logprobs, key=lambda answer: logprobs[answer]), "scored", 0, logprobs)
