"""Scoring by the rules of Cosmos-Reason1's benchmark, for comparison with its published scores.

The answer to a question with options is the first capital letter anywhere; if the question asks for an <answer> tag,
only the content of the tag counts. An open question is right if the texts are equal ignoring case. Our own rules
(`answers.py`) parse more carefully, so the two scores of one model differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vidqa.core.pages.page import percent
from vidqa.evaluation.accuracy import accuracy_interval
from vidqa.evaluation.choices import options_of
from vidqa.evaluation.results import Item

PROTOCOL = "cosmos-reason1"
RETRY_TEMPERATURE_STEP = 0.05  # added to the temperature at each retry of an empty answer
RETRY_TOKENS_STEP = 256  # added to max_tokens at each retry
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
THINKING = re.compile(r"<think>(.*?)</think>", re.DOTALL)
ONE_LETTER = re.compile(r"[A-Z]")


def protocol_answer(response: str | None, question: str, gt: str) -> str:
    """The answer in a response; empty if there is none, in which case the benchmark asks again."""
    text = response or ""
    if "<answer>" in question:
        tagged = TAGGED.search(text)
        text = tagged[1] if tagged else ""
    if not is_lettered(question, gt):
        return text.strip()
    letter = ONE_LETTER.search(text)
    return letter[0] if letter else ""


def is_lettered(question: str, gt: str) -> bool:
    """Whether a question is answered by the letter of an option."""
    return bool(options_of(question)) or bool(ONE_LETTER.fullmatch(gt.strip()))


def protocol_correct(answer: str, gt: str) -> bool:
    """Whether answer and ground truth are equal ignoring case; an empty answer is never right."""
    return answer != "" and answer.strip().casefold() == gt.strip().casefold()


def reasoning_of(response: str | None) -> str:
    """The text between the thinking tags."""
    thinking = THINKING.search(response or "")
    return thinking[1].strip() if thinking else ""


def protocol_scores(items: Sequence[Item]) -> dict[str, Any]:
    """The benchmark's accuracy over results with an expected answer, overall and for lettered and open questions.

    A sample that was not answered, or whose video could not be decoded, counts as wrong. `accuracy_ci95` is 0..1, with
    questions clustered by video.
    """
    items = [item for item in items if item["gt"]]
    lettered = [is_lettered(item["question"], item["gt"]) for item in items]
    return {
        "protocol": PROTOCOL,
        **_row(items),
        "lettered": _row([item for item, is_letter in zip(items, lettered, strict=True) if is_letter]),
        "open_ended": _row([item for item, is_letter in zip(items, lettered, strict=True) if not is_letter]),
    }


def protocol_text(scores: dict[str, Any]) -> str:
    """The benchmark's accuracy in one line."""
    parts = [f"{scores['correct']} of {scores['n']}"]
    open_ended = scores["open_ended"]
    if open_ended["n"]:
        parts.append(f"open questions by exact match {open_ended['correct']} of {open_ended['n']}")
    return f"by the rules of {PROTOCOL}: {percent(scores['accuracy'])} ({', '.join(parts)})"


def _row(items: Sequence[Item]) -> dict[str, Any]:
    answers = [protocol_answer(item["response"], item["question"], item["gt"]) for item in items]
    correct = [protocol_correct(answer, item["gt"]) for answer, item in zip(answers, items, strict=True)]
    interval = accuracy_interval(correct, [item["video_id"] for item in items])
    return {
        "n": len(items),
        "correct": sum(correct),
        "accuracy": round(sum(correct) / len(correct), 6) if correct else None,
        "accuracy_ci95": [interval.low, interval.high] if interval else None,
        "empty": sum(answer == "" for answer in answers),
    }
