"""Answers with their verdicts, the four modes of comparison with the ground truth, and a person's verdict on the ground
truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from vidqa.evaluation.answers import DIRECTION_TASK, Parsed
from vidqa.evaluation.results import Item, Judgement, judge
from vidqa.gaps.analysis.annotations import AnnotationIndex
from vidqa.gaps.analysis.storage import Row

Mode = Literal["exact", "normalized", "bcq", "mcq"]
KINDS = {"bcq": "yes_no", "mcq": "letter"}  # by the modes that parse every answer as one kind
ERROR_TYPES = {  # in the order of summaries
    "wrong": "the parsed answer is not the ground truth",
    "truncated": "the answer was cut off: a larger generation.max_tokens lets it end",
    "unparsed": "the response has no single answer of the requested kind",
    "empty": "nothing was generated, or the video could not be decoded (finish_reason is then error)",
    "missing": "an annotated sample has no result: the evaluation was not finished, or limited",
}


class ScoredAnswer(NamedTuple):
    """One answer; `error` is empty if it is right. `row` is the annotation's index, -1 without one; `source` and
    `result_index` locate the result; they and the response are None if it is missing."""

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
        """Whether one answer could be parsed, right or wrong."""
        return self.error in ("", "wrong")

    def as_row(self, mode: Mode) -> Row:
        """The answer as a row of the gap table."""
        about = (self.video, self.question, self.truth, self.sample_id, self.kind, self.response)
        parsed = None if self.error == "missing" else self.parsed
        return *about, parsed, self.parsed_truth, self.error, mode, self.source, self.result_index


@dataclass
class ScoredAnswers:
    """Every answer with its verdict, in the order of the results, and the annotations."""

    answers: list[ScoredAnswer] = field(default_factory=list)
    annotations: AnnotationIndex = field(default_factory=lambda: AnnotationIndex(""))


class Answered(NamedTuple):
    """A person's verdict on a label; `answer` is the right one, if the label is wrong and it is known."""

    verdict: str
    answer: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether the sample has a label that a person confirmed or corrected."""
        return self.verdict == "right" or bool(self.verdict == "wrong" and self.answer)


def stored_judgement(item: Item) -> Judgement:
    """The verdict that is stored in an item of our own results.json."""
    kind = item["answer_kind"]
    parsed = Parsed(item["parsed_response"], kind, item["parse_status"])
    return Judgement(parsed, Parsed(item["parsed_gt"], kind, "parsed"), item["correct"])


def error_of(judgement: Judgement) -> str:
    """The error type: "" for a right response, else wrong, truncated, unparsed or empty."""
    status = judgement.parsed.status
    return "" if judgement.correct else "wrong" if status == "parsed" else status


def fits(mode: Mode, judgement: Judgement) -> bool:
    """Whether the ground truth is of the kind that the mode requires."""
    return judgement.parsed.kind == KINDS.get(mode, judgement.parsed.kind)


def compare(mode: Mode, response: str, gt: str, question: str, finish_reason: str, answer_kind: str) -> Judgement:
    """Compare a response with its ground truth in one of the modes.

    exact       equal after trimming and lower-casing, as in the original script
    normalized  the rules of the evaluation: the answer is parsed by the kind of its ground truth
    bcq         both parsed as yes/no, whatever options the question lists
    mcq         both parsed as option letters
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
