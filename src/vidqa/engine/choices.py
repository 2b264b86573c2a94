"""Answers that are not generated: of the few that a question allows, the one that the model finds likeliest."""

from __future__ import annotations

import numpy as np

from vidqa.dataset.record import Record
from vidqa.engine.answers import Answer
from vidqa.engine.generators._base import Result
from vidqa.evaluation.choices import allowed_answers
from vidqa.families.chat import Chat


class Choices:
    """The candidates of questions that were put, until their results come."""

    def __init__(self, chat: Chat, task_type: str) -> None:
        self.chat, self.task_type = chat, task_type
        self.forms: dict[str, dict[tuple[int, ...], str]] = {}

    def candidates(self, record: Record) -> tuple[tuple[int, ...], ...]:
        """What a response may begin with, in token ids; none for a question that is to be answered freely."""
        allowed = allowed_answers(record.question, record.answer, self.task_type)
        forms = {self.chat.text_ids(form): answer for answer, found in allowed.items() for form in found}
        if forms:
            self.forms[record.id] = forms
        return tuple(forms)

    def answer(self, result: Result) -> Answer:
        """The likeliest answer. An answer is as likely as all of its forms together."""
        forms = self.forms.pop(result.id)
        scores: dict[str, list[float]] = {answer: [] for answer in forms.values()}
        for answer, score in zip(forms.values(), result.scores, strict=True):
            scores[answer].append(score)
        logprobs = {answer: float(np.logaddexp.reduce(found)) for answer, found in scores.items()}
        return Answer(max(logprobs, key=lambda answer: logprobs[answer]), "scored", 0, logprobs)
