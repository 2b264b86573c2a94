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
LETTERS, NUMBERS = TABLE["letters"], TABLE["numbers"]


def verdict_of(response: str, question: str, expected: str) -> str:
    """The canonical answer, or why there is none."""
    parsed = parse_answer(response, question, expected=expected)
    assert (parsed.answer != "") == (parsed.status == "parsed")
    return parsed.answer or parsed.status


def due(verdicts: dict[str, list[str]]) -> dict[str, str]:
    """The verdict of each response of a family; none of them has two."""
    rows = {response: verdict for verdict, responses in verdicts.items() for response in responses}
    assert len(rows) == sum(map(len, verdicts.values()))
    return rows


@pytest.mark.parametrize("family", LETTERS)
def test_letters_of_responses(family: str) -> None:
    verdicts = due(LETTERS[family])
    assert {response: verdict_of(response, CAR, "B") for response in verdicts} == verdicts


@pytest.mark.parametrize("family", NUMBERS)
def test_numbers_of_responses(family: str) -> None:
    group, verdicts = NUMBERS[family], due(NUMBERS[family]["responses"])
    found = {response: verdict_of(response, group["question"], group["expected"]) for response in verdicts}
    assert found == verdicts


def test_the_table_has_more_than_500_responses() -> None:
    verdicts = [*LETTERS.values(), *(group["responses"] for group in NUMBERS.values())]
    assert sum(len(responses) for by_verdict in verdicts for responses in by_verdict.values()) > 500
