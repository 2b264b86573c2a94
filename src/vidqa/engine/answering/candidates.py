"""Scored answers: the likeliest of the few answers that a question allows, without generating."""

from __future__ import annotations

import numpy as np

from vidqa.data.record import Record
from vidqa.engine.answering.answers import Answer
from vidqa.engine.generators._base import Result
from vidqa.evaluation.answers import allowed_answers
from vidqa.families.chat import Chat


class Candidates:
    """The candidates of submitted questions, until their results come."""

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
        """The likeliest answer. The probability of an answer is the sum over its forms."""
        forms = self.forms.pop(result.id)
        scores: dict[str, list[float]] = {answer: [] for answer in forms.values()}
        for answer, score in zip(forms.values(), result.scores, strict=True):
            scores[answer].append(score)
        logprobs = {answer: float(np.logaddexp.reduce(logs)) for answer, logs in scores.items()}
        return Answer(max(logprobs, key=lambda answer: logprobs[answer]), "scored", 0, logprobs)
