"""Answers with their verdicts, the four ways to compare a response with its ground truth, and what a person says of
that one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from vidqa.evaluation.answers import DIRECTION_TASK, Parsed
from vidqa.evaluation.results import Item, Judgement, judge
from vidqa.gaps.analysis.annotations import AnnotationIndex
from vidqa.gaps.analysis.storage import Row

Mode = Literal["exact", "normalized", "bcq", "mcq"]
KINDS = {"bcq": "yes_no", "mcq": "letter"}  # by the mode that reads every answer as one kind
ERROR_TYPES = {  # in the order of summaries
    "wrong": "an answer was given, and it is not the ground truth",
    "truncated": "the answer was cut off: a larger generation.max_tokens lets it end",
    "unparsed": "the response does not say one answer of the kind that is asked for",
    "empty": "the model said nothing, or its video could not be decoded (finish_reason is then error)",
    "missing": "an annotated sample has no result: the evaluation was not finished, or limited",
}


class ScoredAnswer(NamedTuple):
    """One answer; `error` is empty where it is right. `row` is the annotation's place, -1 without one; `source` and
    `result_index` say where the result is; they and the response are None where it is missing."""

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
    response: str | None = None
    source: str | None = None
    result_index: int | None = None

    @property
    def is_answer(self) -> bool:
        """Whether one answer could be read, right or wrong."""
        return self.error in ("", "wrong")

    def as_row(self, mode: Mode) -> Row:
        """The answer in the gap table."""
        about = (self.video, self.question, self.truth, self.sample_id, self.kind, self.response)
        parsed = None if self.error == "missing" else self.parsed
        return *about, parsed, self.parsed_truth, self.error, mode, self.source, self.result_index


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


def own_judgement(item: Item) -> Judgement:
    """The one that an item of our own results.json carries."""
    kind = item["answer_kind"]
    parsed = Parsed(item["parsed_response"], kind, item["parse_status"])
    return Judgement(parsed, Parsed(item["parsed_gt"], kind, "parsed"), item["correct"])


def error_of(judgement: Judgement) -> str:
    """ "" where the response is right, else wrong, truncated, unparsed or empty."""
    status = judgement.parsed.status
    return "" if judgement.correct else "wrong" if status == "parsed" else status


def fits(mode: Mode, judgement: Judgement) -> bool:
    """Whether the ground truth is of the kind that the mode asks for."""
    return judgement.parsed.kind == KINDS.get(mode, judgement.parsed.kind)


def compare(mode: Mode, response: str, gt: str, question: str, finish_reason: str, answer_kind: str) -> Judgement:
    """A response and its ground truth in one of the modes.

    exact       equal after trimming and lower-casing, as the original script compares
    normalized  the rules of the evaluation: the answer is read by the kind of its ground truth
    bcq         yes/no read from both, whatever options the question lists
    mcq         option letters read from both
    """
    if mode == "exact":
        parsed, truth, kind = response.strip().lower(), gt.strip().lower(), answer_kind or "text"
        status = "truncated" if finish_reason == "length" else "parsed" if parsed else "empty"
        return Judgement(Parsed(parsed, kind, status), Parsed(truth, kind, "parsed"), parsed == truth)
    if mode in KINDS:
        judgement = judge(response, gt, "" if mode == "bcq" else question, finish_reason)
        if fits(mode, judgement):
            return judgement
    return judge(response, gt, question, finish_reason, DIRECTION_TASK if answer_kind == "direction" else "")
