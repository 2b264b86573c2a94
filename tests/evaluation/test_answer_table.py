"""One table of responses with their verdicts, responses.json: every family of phrasing for letters and numbers.

What does not say one answer clearly is "unparsed", and never another letter or number.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.evaluation.answers import parse_answer

TABLE = json.loads(Path(__file__).with_name("responses.json").read_text(encoding="utf-8"))
CAR = "Which vehicle stops first?\nA. the red car\nB. the blue truck\nC. the bus\nD. the bike\nAnswer with the letter."
LETTERS = [
    (family, response, verdict)
    for family, verdicts in TABLE["letters"].items()
    for verdict, responses in verdicts.items()
    for response in responses
]
NUMBERS = [
    (family, response, verdict)
    for family, group in TABLE["numbers"].items()
    for verdict, responses in group["responses"].items()
    for response in responses
]


def verdict_of(response: str, question: str, expected: str) -> str:
    """The canonical answer, or why there is none."""
    parsed = parse_answer(response, question, expected=expected)
    assert (parsed.answer != "") == (parsed.status == "parsed")
    return parsed.answer or parsed.status


@pytest.mark.parametrize(("family", "response", "verdict"), LETTERS)
def test_letter_of_a_response(family: str, response: str, verdict: str) -> None:
    assert verdict_of(response, CAR, "B") == verdict


@pytest.mark.parametrize(("family", "response", "verdict"), NUMBERS)
def test_number_of_a_response(family: str, response: str, verdict: str) -> None:
    group = TABLE["numbers"][family]
    assert verdict_of(response, group["question"], group["expected"]) == verdict


def test_no_response_of_the_table_has_two_verdicts() -> None:
    assert len(LETTERS) + len(NUMBERS) > 500
    assert len({row[:2] for row in LETTERS + NUMBERS}) == len(LETTERS) + len(NUMBERS)
