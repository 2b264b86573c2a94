"""Answers about windows become one answer by a rule that stands beside it."""

from __future__ import annotations

import pytest

from vidqa.evaluation.window_merge import WindowAnswer, expected_of, joined, merged

SPANS = [(0.0, 30.0), (25.0, 55.0), (50.0, 80.0), (90.0, 95.0)]


def said(kind: str, *answers: str) -> list[WindowAnswer]:
    """One answer a window; "" is one that could not be read."""
    return [
        WindowAnswer(span, f"It is {each}.", each, kind, "parsed" if each else "unparsed")
        for span, each in zip(SPANS, answers, strict=False)
    ]


@pytest.mark.parametrize(
    ("answers", "answer", "spans"),
    [
        (["no", "yes", "no"], "yes", ((25.0, 55.0),)),
        (["", "yes", "yes", "yes"], "yes", ((25.0, 80.0), (90.0, 95.0))),
        (["no", "no", "no"], "no", ((0.0, 80.0),)),
        (["no", "", "no"], "", ()),
    ],
)
def test_yes_no_windows_merge_to_yes_if_one_says_yes_and_to_no_if_all_say_no(
    answers: list[str], answer: str, spans: tuple[tuple[float, float], ...]
) -> None:
    found = merged(said("yes_no", *answers), len(answers))
    assert (found.answer, found.spans_s, found.rule) == (answer, spans, "yes if any window says yes, no if all say no")
    assert found.status == ("parsed" if answer else "undecided")


def test_yes_no_windows_with_one_unparsed_do_not_merge_to_no() -> None:
    assert merged(said("yes_no", "no", "no"), 3).status == "undecided"
    assert merged(said("yes_no", "no", "yes"), 3).answer == "yes"


def test_an_answer_of_another_kind_is_no_vote() -> None:
    free = said("text", "shut")
    assert merged([*said("yes_no", "no", "no"), *free], 3).status == "undecided"
    assert merged([*said("letter", "A", "B"), *free, *said("letter", "B")], 4).answer == "B"


def test_choice_windows_merge_to_the_most_common_answer() -> None:
    found = merged(said("letter", "B", "A", "B", ""), 4)
    assert (found.answer, found.spans_s, found.status) == ("B", ((0.0, 30.0), (50.0, 80.0)), "parsed")
    assert merged(said("letter", "B", "A"), 2).status == "undecided"
    assert merged(said("letter", "", ""), 2).status == "undecided"


def test_free_text_windows_are_listed_with_their_times() -> None:
    found = merged(said("text", "a door", "a window"), 2)
    assert found.response == "0-30 s: It is a door.\n25-55 s: It is a window."
    assert (found.answer, found.status, found.rule) == ("", "separate", "not merged")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Is the door open?", "yes"),
        ("Watch the door. Does it open?", "yes"),
        ("Is it red or blue?", None),
        ("Is it (A) red (B) blue?", None),
        ("What is it?", None),
        ("Describe what is shown.", None),
    ],
)
def test_expected_answer_of_a_question_tells_yes_no_kind(question: str, expected: str | None) -> None:
    assert expected_of(question) == expected


def test_joined_merges_touching_spans() -> None:
    assert joined([(0.0, 1.0), (1.0, 2.0), (1.5, 1.8), (3.0, 4.0)]) == ((0.0, 2.0), (3.0, 4.0))
