"""Which answers a question allows."""

from __future__ import annotations

import pytest

from vidqa.evaluation.answers import allowed_answers, parse_answer

OPTIONS = "Which one?\n(A) left\n(B) right\n(C) neither"


@pytest.mark.parametrize(
    ("question", "gt", "allowed"),
    [
        ("Is it red?", "Yes.", "Yes No"),
        ("Is it red?", "false", "Yes No"),
        ("Is it red? Answer yes or no.", "", "Yes No"),  # without a ground truth the question decides
        (OPTIONS, "B", "A B C"),
        (OPTIONS, "(C) neither", "A B C"),
        (OPTIONS, "", "A B C"),
        ("Is it red? A. Yes B. No", "A", "A B"),
        ("Is it red? A. Yes B. No", "No", "A B"),  # named by its text
        ("Which one?", "B", ""),  # nobody knows how many there are
        ("How many?", "3", ""),
        ("What happens?", "a car turns", ""),
        ("What happens?", "", ""),
    ],
)
def test_a_question_allows_the_answers_of_its_kind(question: str, gt: str, allowed: str) -> None:
    found = allowed_answers(question, gt)
    assert list(found) == allowed.split()
    for answer, forms in found.items():
        read = parse_answer(answer, question, expected=gt or None).answer
        assert read.casefold() == answer.casefold()  # an answer is parsed as what it is
        assert forms[0] == answer
    texts = [form for forms in found.values() for form in forms]
    assert not any(one != other and other.startswith(one) for one in texts for other in texts)


def test_a_direction_is_written() -> None:
    assert allowed_answers("Which way?\n(A) left\n(B) right", "A", "its_directionality") == {}
