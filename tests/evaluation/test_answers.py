"""Reading answers: responses as models write them, inputs that no model should write, and what a question allows."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidqa.evaluation.answers import allowed_answers, parse_answer, parse_expected
from vidqa.evaluation.choices import options_of

CAR = "Which vehicle stops first?\nA. the red car\nB. the blue truck\nC. the bus\nAnswer with the letter only."
TURN = "Where does it go? (A) left (B) right (C) straight. Please answer with a letter."
SWAP = "Is it moving? A) Yes B) No"

YES_NO = [
    ("Yes", "yes"),
    ("yes.", "yes"),
    (" YES!\n", "yes"),
    ("No", "no"),
    ("No.", "no"),
    ("**No**", "no"),
    ("`Yes`", "yes"),
    ('"Yes"', "yes"),
    ("ＹＥＳ", "yes"),
    ("Yes\u200b", "yes"),
    ("True", "yes"),
    ("false", "no"),
    ("Yes, the car stops at the line.", "yes"),
    ("Yes, there is no pedestrian on the road.", "yes"),
    ("No, the car does not stop; yes it slows down.", "no"),
    ("No - it keeps going.", "no"),
    ("No the car keeps going", "no"),
    ("Answer: yes", "yes"),
    ("The answer is no.", "no"),
    ("The answer is **Yes**.", "yes"),
    ("At first no, but then it stops. The final answer is: Yes", "yes"),
    ("The car brakes hard at 2.0 seconds. Yes.", "yes"),
    ("I would say no.", "no"),
    ("I think yes because it brakes", "yes"),
    ("yes. No. yes. no.", "yes"),  # what leads decides
    ("<think>no, wait. maybe yes</think>\n\nNo", "no"),
    ("<think>a</think><think>b</think>yes", "yes"),
    ("it may be no.</think>Yes", "yes"),
    ("<think>The car moves.</think> <answer>Yes</answer>", "yes"),
    ("<ANSWER> no </ANSWER>", "no"),
    ("<answer>Yes</answer> I am sure, no doubt.", "yes"),
    ("<answer>No</answer> Wait. <answer>Yes</answer>", "yes"),
    ("Yes <think>was that right?</think>", "yes"),
    (r"\boxed{Yes}", "yes"),
    ("At first it looks like yes. It never stops.\nNo.", "no"),
    ('{"answer": "No", "reason": "yes, it brakes"}', "no"),
    ("no (it keeps going)", "no"),
    ("Yes. Actually, no.", "no"),
    ("No. Actually yes, it stops at 3 s.", "yes"),
    ("Yes. Wait, no, it goes on.", "no"),
    ("Wait, no. Yes.", "no"),
    ("The answer is yes. Correction: no.", "no"),
    ("Yes. Actually, no cars are there.", "yes"),
    ("Yes. No wait, yes.", "yes"),
    (True, "yes"),
]
NOT_YES_NO = [
    "Yes or no? Hard to tell.",
    "The car stops.",
    "No cars are visible, so the road is free.",
    "yes and no",
    "Maybe",
    "Nothing happens",
    "That is not true.",
    "The answer is not yes.",
    "Yes, it brakes.\nNo.",
    "Yes. Wait, let me check. No, it goes on.",
    "Yes? No.",
    "eyes",
]


@pytest.mark.parametrize(("response", "answer"), YES_NO)
def test_yes_no(response, answer):
    parsed = parse_answer(response, "Does the car stop?", expected="yes")
    assert (parsed.answer, parsed.kind, parsed.status) == (answer, "yes_no", "parsed")


@pytest.mark.parametrize("response", NOT_YES_NO)
def test_unclear_yes_no_is_unparsed(response):
    parsed = parse_answer(response, "Does the car stop?", expected="no")
    assert (parsed.answer, parsed.status) == ("", "unparsed")


LETTERS = [
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("B.", "B"),
    ("B)", "B"),
    ("[B]", "B"),
    ("B:", "B"),
    ("**B**", "B"),
    ("Ｂ", "B"),
    ("B. the blue truck", "B"),
    ("B the blue truck", "B"),
    ("(b) the blue truck", "B"),
    ("Answer: B", "B"),
    ("answer: (b)", "B"),
    ("The answer is (B).", "B"),
    ("The correct answer is B because the truck brakes.", "B"),
    ("The correct answer is **B. the blue truck**", "B"),
    ("C. the bus is late. So the answer is B.", "B"),
    ("Option B is correct.", "B"),
    ("I choose option B.", "B"),
    ("B\nThe truck brakes first.", "B"),
    ("B - the truck brakes", "B"),
    ("the blue truck", "B"),
    ("The blue truck.", "B"),
    ("Blue truck", "B"),
    ("The answer is the blue truck.", "B"),
    ("It is the blue truck that stops first.", "B"),
    ("<think>A or C?</think>B", "B"),
    ("<think>A or C?</think>\n<answer>B</answer>", "B"),
    (r"$\boxed{B}$", "B"),
    ("The vehicle (B) stops.", "B"),
    ("A", "A"),
    ("The answer is A", "A"),
    ("The answer is A because it brakes.", "A"),
    ("The answer is a red car.", "A"),
    ("E", "E"),  # not an option, but what was said: wrong, not unparsed
]
NOT_LETTERS = [
    "A, C",
    "A and B",
    "(A) or (B)",
    "The red car or the blue truck.",
    "A vehicle stops.",
    "I see cars.",
    "none of them",
    "Option A or option B",
]


@pytest.mark.parametrize(("response", "answer"), LETTERS)
def test_letter(response, answer):
    parsed = parse_answer(response, CAR, expected="B")
    assert (parsed.answer, parsed.kind, parsed.status) == (answer, "letter", "parsed")


@pytest.mark.parametrize("response", NOT_LETTERS)
def test_unclear_letter_is_unparsed(response):
    parsed = parse_answer(response, CAR, expected="B")
    assert (parsed.answer, parsed.status) == ("", "unparsed")


@pytest.mark.parametrize("gt", ["B", "b", "(B)", "B.", "B. the blue truck", "the blue truck", "The blue truck."])
def test_every_way_to_write_the_expected_option(gt):
    parsed = parse_expected(gt, CAR)
    assert (parsed.answer, parsed.kind) == ("B", "letter")


def test_options_are_found_in_both_layouts():
    assert options_of(CAR) == {"A": "the red car", "B": "the blue truck", "C": "the bus"}
    assert options_of(TURN) == {"A": "left", "B": "right", "C": "straight"}
    assert options_of("Pick: a) up b) down") == {"A": "up", "B": "down"}
    assert options_of("A. only one option") == {}
    assert options_of("Did vehicle B stop?") == {}


def test_options_that_are_yes_and_no():
    assert parse_expected("Yes", SWAP).answer == "A"
    assert parse_answer("No.", SWAP, expected="A").answer == "B"
    assert parse_answer("Yes, there is no doubt.", SWAP, expected="A").answer == "A"


NUMBERS = [
    ("3", "3", "3"),
    ("3.", "3", "3"),
    ("three", "3", "3"),
    ("Three.", "3", "3"),
    ("3.0", "3", "3"),
    ("There are 3 cars.", "3", "3"),
    ("There are three cars.", "3", "3"),
    ("Answer: 3", "3", "3"),
    ("3 cars: 2 red ones and 1 blue one.", "3", "3"),
    ("I see 2 red and 1 blue one. The answer is 3.", "3", "3"),
    ("**3**", "3", "3"),
    ("twice", "2", "2"),
    ("1,250", "1250", "1250"),
    ("-4", "-4", "-4"),
    ("12 seconds", "12 seconds", "12"),
    ("12", "12 seconds", "12"),
    ("12 s", "12 seconds", "12"),
    ("12s", "12 seconds", "12"),
    ("12 minutes", "12 seconds", "12 minutes"),
    ("40 %", "40%", "40"),
    ("12 seconds", "12", "12 seconds"),  # a unit that nobody named is part of the answer
    ("50 km/h", "50", "50 km/h"),
]


@pytest.mark.parametrize(("response", "expected", "answer"), NUMBERS)
def test_number(response, expected, answer):
    parsed = parse_answer(response, "How many?", expected=expected)
    assert (parsed.answer, parsed.kind, parsed.status) == (answer, "number", "parsed")


def test_a_unit_named_by_the_question_may_be_said():
    assert parse_answer("12 seconds", "How many seconds does it wait?", expected="12").answer == "12"


def test_a_power_with_many_decimals_is_read_exactly():
    base = "0.1234567890123456789012345678"
    assert Fraction(parse_answer(f"{base}^30", expected="3").answer) == Fraction(base) ** 30


@pytest.mark.parametrize("response", ["3 or 4", "3-4", "between 3 and 4", "the 3rd one", "many", "at 12:30"])
def test_unclear_number_is_unparsed(response):
    assert parse_answer(response, "How many?", expected="3").status == "unparsed"


DIRECTIONS = [
    ("left", "left"),
    ("Left.", "left"),
    ("The car turns right.", "right"),
    ("straight ahead", "straight"),
    ("It keeps going forward", "straight"),
    ("It goes straight, then left. Answer: left", "left"),
    ("(B)", "right"),
    ("C. straight", "straight"),
    ("It does not turn left but right.", "right"),
    ("Left. Actually, right.", "right"),
]


@pytest.mark.parametrize(("response", "answer"), DIRECTIONS)
def test_direction(response, answer):
    parsed = parse_answer(response, TURN, expected="left", task_type="its_directionality")
    assert (parsed.answer, parsed.kind, parsed.status) == (answer, "direction", "parsed")


def test_direction_by_letter_and_unclear():
    assert parse_expected("B", TURN, "its_directionality").answer == "right"
    parsed = parse_answer("left or right", "Where?", expected="left", task_type="its_directionality")
    assert (parsed.answer, parsed.status) == ("", "unparsed")
    parsed = parse_answer("It doesn't turn left.", "Where?", expected="left", task_type="its_directionality")
    assert (parsed.answer, parsed.status) == ("", "unparsed")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("A red  Circle.", "red circle"),
        ("the answer is: red circle", "red circle"),
        ("red-circle!", "red circle"),
        ("It doesn’t move", "it doesn't move"),
        ("Straße", "strasse"),
        ("速度は速い。", "速度は速い"),
    ],
)
def test_text_is_normalised(response, answer):
    assert parse_answer(response, "What is it?", expected="a red circle").answer == answer


CUT = [
    ("<think>The car approaches the", "yes", "truncated"),
    ("The car approaches the crossing and", "yes", "truncated"),
    ("Yes, because the car appro", "yes", "parsed"),
    ("Yes", "yes", "parsed"),
    ("<think>x</think><answer>Yes</answer> because", "yes", "parsed"),
    ("<answer>The red ci", "the red circle", "truncated"),
    ("<answer>the red circle</answer> and", "the red circle", "parsed"),
    ("the red circle", "the red circle", "truncated"),
    ("3", "35", "truncated"),
    ("B. the blue tr", "B", "parsed"),
    ("B. Actually, A", "B", "truncated"),
    ("It may be the answer is B", "B", "truncated"),
    ("", "yes", "truncated"),
    (None, "yes", "truncated"),
]


@pytest.mark.parametrize(("response", "expected", "status"), CUT)
def test_cut_off_answers(response, expected, status):
    assert parse_answer(response, "q", "length", expected).status == status


def test_unclosed_thinking_is_truncated_whatever_the_finish_reason():
    assert parse_answer("<think>Yes.", "Is it?", "stop", "yes").status == "truncated"


@pytest.mark.parametrize("response", [None, "", "  \n", float("nan"), "<think>x</think>", "<answer></answer>"])
def test_nothing_said_is_empty(response):
    assert parse_answer(response, "Is it?", expected="yes").status == "empty"


def test_the_kind_without_an_expected_answer():
    assert parse_answer("B", CAR).kind == "letter"
    assert parse_answer("Yes.", "Is it? Answer yes or no.").kind == "yes_no"
    assert parse_answer("Yes.", "Is it?").kind == "yes_no"
    assert parse_answer("12 seconds", "How long?").kind == "number"
    assert parse_answer("a red car", "What?").kind == "text"


@pytest.mark.parametrize(
    "response",
    [
        *("x" * 1_000_000, "<think>" * 50_000, "(A) " * 100_000, "yes " * 100_000, "1,000," * 100_000),
        *("( " * 100_000, "{" * 200_000, "so A, " * 30_000, "2½" * 50_000, "3 " * 100_000, "1/2 " * 50_000),
        *("x. " + " " * 50_000 + "x", "x?" + "\n" * 50_000 + "x", "x?" + "\t" * 50_000 + "3"),
        *("\\boxed{" * 50_000, "answer is " * 50_000, " " * 500_000, "ﷺ" * 50_000, "<answer>" * 100_000),
    ],
)
def test_huge_responses_are_read_quickly(response):
    for expected in ("yes", "B", "3", "left", "some text"):
        start = time.process_time()
        parse_answer(response, CAR, expected=expected)
        assert time.process_time() - start < 5, expected  # seconds; a quadratic reading takes minutes


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.text(st.characters()), st.none(), st.booleans(), st.floats(), st.integers(), st.lists(st.text()), st.binary()
    ),
    st.text(st.characters()),
    st.one_of(st.none(), st.text(st.characters()), st.sampled_from(["yes", "B", "3", "12 s", "left"])),
    st.sampled_from(["", "its_directionality"]),
)
def test_never_raises_and_never_has_an_answer_unless_parsed(text, question, expected, task):
    for reason in ("stop", "length"):
        parsed = parse_answer(text, question, reason, expected, task)
        assert (parsed.answer != "") == (parsed.status == "parsed")
        parsed.answer.encode("utf-8")


WHERE = "Which one?\n(A) left\n(B) right\n(C) neither"


@pytest.mark.parametrize(
    ("question", "gt", "allowed"),
    [
        ("Is it red?", "Yes.", "Yes No"),
        ("Is it red?", "false", "Yes No"),
        ("Is it red? Answer yes or no.", "", "Yes No"),  # without a ground truth the question decides
        (WHERE, "B", "A B C"),
        (WHERE, "(C) neither", "A B C"),
        (WHERE, "", "A B C"),
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
