"""Rewards that are here. Each is a function of one completion, from 0 to 1, and never of the others in its group."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vidqa.data.record import Record
from vidqa.evaluation import text
from vidqa.evaluation.answers import final_answer
from vidqa.evaluation.results import make_item

TOLERANCE = 0.01  # of `number`, relative; absolute below 1
# Anything but another tag inside, so that tags cannot be repeated or swallowed.
_INSIDE = r"(?:(?!</?(?:think|answer)>).)*?\S(?:(?!</?(?:think|answer)>).)*"
_FORMAT = re.compile(rf"\s*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*", re.DOTALL)
_FORMAT_STRICT = re.compile(r"<think>.*?</think>\n\n<answer>.*?</answer>", re.DOTALL)


@dataclass(frozen=True)
class Completion:
    """A completion of a record's question. `token_ids` are those of the completion, the stop token included;
    `finish_reason` is "stop" or "length"."""

    record: Record
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str = "stop"

    @cached_property
    def item(self) -> dict[str, Any]:
        """The item that an evaluation would write for it."""
        return make_item(self.record, self.text, self.finish_reason)

    @property
    def difference(self) -> float | None:
        """|answer - reference| where both are numbers."""
        if self.item["parse_status"] != "parsed":
            return None
        try:
            return abs(float(self.item["parsed_response"]) - float(self.item["parsed_gt"]))
        except ValueError:
            return None


def accuracy(completion: Completion) -> float:
    """1 where the evaluation counts the answer as right."""
    return float(completion.item["correct"] is True)


def format(completion: Completion) -> float:
    """1 for one <think>...</think> and one <answer>...</answer> behind it, neither empty, nothing else around them."""
    return float(_FORMAT.fullmatch(completion.text) is not None)


def format_strict(completion: Completion) -> float:
    """1 for cosmos-rl's pattern, which wants an empty line between the two."""
    return float(_FORMAT_STRICT.fullmatch(completion.text) is not None)


def number(completion: Completion) -> float:
    """1 for a number within TOLERANCE of the reference."""
    if (difference := completion.difference) is None:
        return 0.0
    return float(difference <= TOLERANCE * max(1.0, abs(float(completion.item["parsed_gt"]))))


def distance(completion: Completion) -> float:
    """1 for the reference's number, 0.5 for one at most 1 away, else 0."""
    difference = completion.difference
    if difference is None:
        return 0.0
    return 1.0 if math.isclose(difference, 0.0, abs_tol=1e-9) else 0.5 if difference <= 1.0 + 1e-9 else 0.0


def token_f1(completion: Completion) -> float:
    """F1 of the words of the answer and of the reference, each counted as often as it stands there."""
    answer, reference = (final_answer(written).text for written in (completion.text, completion.record.answer))
    return text.token_f1(answer, reference) if text.tokens(reference) else 0.0  # two empty texts earn nothing


BUILT_IN: dict[str, Callable[[Completion], float]] = {
    reward.__name__: reward for reward in (accuracy, format, format_strict, number, distance, token_f1)
}


def overlong(tokens: int, longest: int, buffer: int, factor: float) -> float:
    """The penalty of a completion of `tokens` tokens: 0 up to `longest` - `buffer`, then falling to -`factor`."""
    exceeding = tokens - (longest - buffer)
    return min(-exceeding / buffer * factor, 0.0)
