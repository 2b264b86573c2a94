"""Rewards of completions: they agree with the evaluation, and nothing is rewarded for saying everything."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from vidqa.core.problem import ProblemError
from vidqa.data.record import Record, Turn
from vidqa.evaluation.results import make_item
from vidqa.evaluation.rewards import (
    BUILT_IN,
    Completion,
    Rewards,
    label_of,
    overlong,
    question_problems,
    shuffled_options,
)
from vidqa.spec.grpo_tables import REWARDS

COLOURS = "What colour is it?\n(A) red\n(B) blue\n(C) dark red\nAnswer with the letter."
NO_PENALTY = SimpleNamespace(overlong_reward=SimpleNamespace(enable_overlong_penalty=False))


def record(question: str, answer: str) -> Record:
    return Record("r1", (Turn("user", (question,)), Turn("assistant", (answer,))), source="set.json[0]")


def rewarded(question: str, answer: str, text: str, reason: str = "stop") -> dict[str, float]:
    completion = Completion(record(question, answer), text, finish_reason=reason)
    return {name: function(completion) for name, function in BUILT_IN.items()}


def test_every_reward_that_a_spec_may_name_is_there() -> None:
    assert set(REWARDS.values()) == set(BUILT_IN)


@pytest.mark.parametrize("text", ["", " ", "A B C", "A, B or C", "(A) red (B) blue (C) dark red", "red blue dark red"])
def test_nothing_and_everything_is_not_right(text: str) -> None:
    assert rewarded(COLOURS, "B", text)["accuracy"] == 0.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("B", "stop"),
        ("<answer>(B)</answer>", "stop"),
        ("The answer is B.", "stop"),
        ("C", "stop"),
        ("<think>B", "length"),
    ],
)
def test_the_accuracy_is_the_evaluations_verdict(text: str, reason: str) -> None:
    asked = record(COLOURS, "B")
    assert rewarded(COLOURS, "B", text, reason)["accuracy"] == float(make_item(asked, text, reason)["correct"] is True)


@pytest.mark.parametrize(
    ("text", "tolerant", "strict"),
    [
        ("<think>so</think>\n\n<answer>B</answer>", 1, 1),
        ("<think>so</think> <answer>B</answer>", 1, 0),
        ("<think>so</think><answer>B</answer>\n", 1, 0),
        ("<think></think> <answer>B</answer>", 0, 0),
        ("<think>so</think> <answer> </answer>", 0, 0),
        ("<think>a</think> <think>b</think> <answer>B</answer>", 0, 0),
        ("<think>so</think> <answer>B</answer> and more", 0, 0),
        ("<answer>B</answer>", 0, 0),
    ],
)
def test_formats(text: str, tolerant: int, strict: int) -> None:
    found = rewarded(COLOURS, "B", text)
    assert (found["format"], found["format_strict"]) == (tolerant, strict)


@pytest.mark.parametrize(
    ("reference", "text", "number", "distance"),
    [
        ("4", "4", 1, 1),
        ("4", "5", 0, 0.5),
        ("4", "6", 0, 0),
        ("4", "a few", 0, 0),
        ("1", "1.01", 1, 0.5),
        ("1/3", "1/3", 1, 1),
        ("1/3", "2/6", 1, 1),
        ("1/3", "1/2", 0, 0.5),
        ("1/3", "12 minutes", 0, 0),
    ],
)
def test_numbers(reference: str, text: str, number: float, distance: float) -> None:
    found = rewarded("How many cars are there?", reference, text)
    assert (found["number"], found["distance"]) == (number, distance)


def test_the_penalty_of_long_completions_begins_in_the_buffer() -> None:
    assert [overlong(tokens, 100, 20, 0.5) for tokens in (10, 80, 90, 100)] == [0.0, 0.0, -0.25, -0.5]


def test_rewards_are_weighted_sums_of_their_parts() -> None:
    text = "<think>so</think> <answer>C</answer>"
    with Rewards({"single_choice": 1.0, "format": 0.25}, NO_PENALTY, 10, 1.0) as rewards:
        reward = rewards(Completion(record(COLOURS, "B"), text))
    assert reward.total == 0.25 and dict(reward.parts) == {"accuracy": 0.0, "format": 1.0}


def test_options_change_places_and_the_reference_goes_with_them() -> None:
    asked, seen = record(COLOURS, "B"), set()
    for seed in range(40):
        shuffled = shuffled_options(asked, str(seed))
        letter = label_of(shuffled)
        assert f"({letter}) blue\n" in shuffled.question + "\n"
        assert sorted(shuffled.question) == sorted(asked.question)
        seen.add(shuffled.question)
        assert shuffled == shuffled_options(asked, str(seed))
    assert len(seen) == 6


@pytest.mark.parametrize(("question", "answer"), [("Is it red?", "yes"), (COLOURS, "F"), ("(A) x\n(B) x", "A")])
def test_a_question_that_cannot_be_shuffled_stays(question: str, answer: str) -> None:
    asked = record(question, answer)
    assert shuffled_options(asked, "1") is asked


@pytest.mark.parametrize(
    ("question", "answer", "reward", "code"),
    [
        (COLOURS, "F", "accuracy", "REWARD_REFERENCE"),
        (COLOURS, "", "accuracy", "REWARD_REFERENCE"),
        ("How many?", "a lot", "number", "REWARD_REFERENCE"),
        (COLOURS, "B", "accuracy", None),
        (COLOURS, "blue", "accuracy", None),
        (COLOURS, "", "format", None),
    ],
)
def test_references_that_no_completion_can_meet(question: str, answer: str, reward: str, code: str | None) -> None:
    found = question_problems([record(question, answer)], reward, balanced=False)
    assert [problem.code for problem in found] == ([code] if code else [])


def test_one_label_cannot_be_balanced() -> None:
    found = question_problems([record(COLOURS, "B")] * 3, "accuracy", balanced=True)
    assert [problem.code for problem in found] == ["REWARD_LABELS"]


def own(folder: Path, body: str, name: str = "own") -> str:
    (folder / "own.py").write_text(f"import os, sys, time\ndef own(text, record, token_ids, reason):\n    {body}\n")
    return f"{folder / 'own.py'}:{name}"


def test_a_function_of_ones_own_gives_a_number_and_parts(tmp_path: Path) -> None:
    body = "print('noise'); return (len(text) + record.answer.count('B'), {'tokens': len(token_ids)})"
    with Rewards([own(tmp_path, body)], NO_PENALTY, 10, 5.0) as rewards:
        for text in ("abc", "ab"):
            reward = rewards(Completion(record(COLOURS, "B"), text, (1, 2)))
            assert reward.total == len(text) + 1 and dict(reward.parts) == {"own": len(text) + 1, "tokens": 2.0}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "not a number"),
        ("return float('inf')", "inf"),
        ("return 10**400", "not a number"),
        ("return 1.0, {'part': float('nan')}", ""),
        ("return 1.0, {'own': 0.5}", "gave the part 'own'"),
        ("raise SystemExit(0)", ""),
        ("os._exit(0)", ""),
        ("time.sleep(60)", "took more than 1 s"),
    ],
)
def test_what_a_function_does_wrong_names_the_record(tmp_path: Path, body: str, message: str) -> None:
    started = time.monotonic()
    with Rewards([own(tmp_path, body)], NO_PENALTY, 10, 1.0) as rewards, pytest.raises(ProblemError) as raised:
        rewards(Completion(record(COLOURS, "B"), "x"))
    assert [problem.code for problem in raised.value.problems] == ["USER_FUNCTION"]
    assert message in raised.value.problems[0].message
    assert "set.json[0] (id r1)" in raised.value.problems[0].where
    assert time.monotonic() - started < 40


def test_a_file_that_is_slow_to_import_is_told_from_a_slow_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vidqa.evaluation.rewards.START_S", 0.5)
    function = own(tmp_path, "return 1.0\ntime.sleep(60)")
    with pytest.raises(ProblemError) as raised, Rewards([function], NO_PENALTY, 10, 30.0) as rewards:
        rewards(Completion(record(COLOURS, "B"), "x"))
    assert "importing it took more than 0.5 s" in raised.value.problems[0].message


def test_what_a_function_starts_ends_with_it(tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.fork() or time.sleep(600))); return 1.0"
    with Rewards([own(tmp_path, body)], NO_PENALTY, 10, 5.0) as rewards:
        assert rewards(Completion(record(COLOURS, "B"), "x")).total == 1.0
        forked = int((tmp_path / "pid").read_text())
        os.kill(forked, 0)
    ended = time.monotonic() + 10
    while time.monotonic() < ended and Path(f"/proc/{forked}/cmdline").exists():
        if not Path(f"/proc/{forked}/cmdline").read_bytes():  # a zombie that nobody has waited for yet
            break
        time.sleep(0.01)
    assert time.monotonic() < ended


@pytest.mark.parametrize("name", ["other", "own"])
def test_a_function_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    function = own(tmp_path, "return 1", name) if name == "other" else f"{tmp_path}/no.py:own"
    with pytest.raises(ProblemError) as raised, Rewards([function], NO_PENALTY, 10, 1.0) as rewards:
        rewards(Completion(record(COLOURS, "B"), "x"))
    assert raised.value.problems[0].code == "USER_FUNCTION"
