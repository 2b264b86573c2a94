"""One answer with its verdict, and the four ways to compare a response with its ground truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vidqa.evaluation.answers import DIRECTION_TASK
from vidqa.evaluation.results import Item, judge

MODES = ("exact", "normalized", "bcq", "mcq")


class ScoredAnswer(NamedTuple):
    """One answer; `error` is empty where it is right. `row` is the annotation's place, -1 without one."""

    row: int
    video: str
    question: str
    truth: str
    sample_id: str
    kind: str
    error: str
    parsed: str
    parsed_truth: str
    answer_kind: str

    @property
    def is_answer(self) -> bool:
        """Whether one answer could be read, right or wrong."""
        return self.error in ("", "wrong")


class Verdict(NamedTuple):
    """`error` is "" where the response is right, else wrong, truncated, unparsed or empty."""

    error: str
    parsed_response: str
    parsed_gt: str
    kind: str
    fits_mode: bool = True  # False where the ground truth is not of the mode's kind


Compare = Callable[[str, str, str, str, str], Verdict]


def own_verdict(item: Item) -> Verdict:
    """The verdict that an item of our own results.json carries."""
    error = _error(bool(item["correct"]), item["parse_status"])
    return Verdict(error, item["parsed_response"], item["parsed_gt"], item["answer_kind"])


def _error(is_correct: bool, status: str) -> str:
    return "" if is_correct else "wrong" if status == "parsed" else status


def comparer(mode: str) -> Compare:
    """compare(response, gt, question, finish_reason, answer_kind) for one of MODES.

    exact       equal after trimming and lower-casing, as the original script compares
    normalized  the rules of the evaluation: the answer is read by the kind of its ground truth
    bcq         yes/no read from both, whatever options the question lists
    mcq         option letters read from both
    """
    bcq, mcq = _of_kind("yes_no", needs_options=False), _of_kind("letter", needs_options=True)
    return {"exact": _exact, "normalized": _normalized, "bcq": bcq, "mcq": mcq}[mode]


def _exact(response: str, gt: str, question: str, finish_reason: str, answer_kind: str) -> Verdict:
    parsed, truth = response.strip().lower(), gt.strip().lower()
    if parsed == truth:
        error = ""
    elif finish_reason == "length":
        error = "truncated"
    else:
        error = "wrong" if parsed else "empty"
    return Verdict(error, parsed, truth, answer_kind or "text")


def _normalized(response: str, gt: str, question: str, finish_reason: str, answer_kind: str) -> Verdict:
    task = DIRECTION_TASK if answer_kind == "direction" else ""
    parsed, truth, is_correct = judge(response, gt, question, finish_reason, task)
    return Verdict(_error(bool(is_correct), parsed.status), parsed.answer, truth.answer, parsed.kind)


def _of_kind(kind: str, needs_options: bool) -> Compare:
    """`_normalized` that reads every ground truth as one kind, with the options of the question or without."""

    def compare(response: str, gt: str, question: str, finish_reason: str, answer_kind: str) -> Verdict:
        verdict = _normalized(response, gt, question if needs_options else "", finish_reason, "")
        if verdict.kind == kind:
            return verdict
        return _normalized(response, gt, question, finish_reason, answer_kind)._replace(fits_mode=False)

    return compare
