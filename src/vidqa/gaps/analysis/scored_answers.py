"""Answers with their verdicts, the four ways to compare a response with its ground truth, and what a person says of
that one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from vidqa.evaluation.answers import DIRECTION_TASK
from vidqa.evaluation.results import Item, judge
from vidqa.gaps.analysis.annotations import AnnotationIndex

Mode = Literal["exact", "normalized", "bcq", "mcq"]
ERROR_TYPES = {  # in the order of summaries
    "wrong": "an answer was given, and it is not the ground truth",
    "truncated": "the answer was cut off: a larger generation.max_tokens lets it end",
    "unparsed": "the response does not say one answer of the kind that is asked for",
    "empty": "the model said nothing, or its video could not be decoded (finish_reason is then error)",
    "missing": "an annotated sample has no result: the evaluation was not finished, or limited",
}


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


@dataclass
class ScoredAnswers:
    """Every answer with its verdict, in the order of the results, and the annotations."""

    answers: list[ScoredAnswer] = field(default_factory=list)
    annotations: AnnotationIndex = field(default_factory=lambda: AnnotationIndex(""))


class Answered(NamedTuple):
    """A person's verdict on a label; `answer` is the right one, where the label is wrong and it is known."""

    verdict: str
    answer: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether the sample still has a label that a person stands by."""
        return self.verdict == "right" or bool(self.verdict == "wrong" and self.answer)


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


def comparer(mode: Mode) -> Compare:
    """compare(response, gt, question, finish_reason, answer_kind) of a mode.

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
