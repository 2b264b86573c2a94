"""The answers that a question allows, where they are few: yes and no, or the letters of its options."""

from __future__ import annotations

from vidqa.evaluation.answers import parse_answer, parse_expected
from vidqa.evaluation.options import options_of
from vidqa.evaluation.text import clean

YES_NO: dict[str, tuple[str, ...]] = {"Yes": ("Yes", "yes", "True", "true"), "No": ("No", "no", "False", "false")}


def allowed_answers(question: str, gt: str, task_type: str = "") -> dict[str, tuple[str, ...]]:
    """Each allowed answer with the forms in which a response may begin with it; none of them is the beginning of
    another. Empty where the kind of answer, which is the ground truth's or else the question's, is another one."""
    expected = parse_expected(gt, question, task_type)
    kind = parse_answer("", question, task_type=task_type).kind if expected.status == "empty" else expected.kind
    if kind == "yes_no":
        return YES_NO
    return {letter: (letter, f"({letter}") for letter in options_of(clean(question))} if kind == "letter" else {}
