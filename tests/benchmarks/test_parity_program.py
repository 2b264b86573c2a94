"""Parity: the figures of two generators' answers, and the whole comparison as a developer runs it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from parity import compare, exceeded
from tiny_world import tiny_data, tiny_model

from vidqa.core.cli import SKILL_ROOT
from vidqa.families.chat import Chat, load_chat
from vidqa.planning.requests import Result


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    tiny_model(folder)
    tiny_data(folder, clips=2)
    return folder


@pytest.fixture(scope="module")
def chat(world: Path) -> Chat:
    return load_chat(world / "model")


def result(name: str, *token_ids: int, logprobs: tuple[float, ...] = ()) -> Result:
    likeliest = tuple(((token, -0.1), (token + 1, -0.3)) for token in token_ids)
    return Result(name, "length", token_ids, logprobs or (-0.1,) * len(token_ids), likeliest)


def test_answers_are_compared_up_to_where_they_part(chat: Chat) -> None:
    expected = {name: result(name, 40, 50, 60) for name in "abcd"}
    found = {
        "a": result("a", 40, 50, 60, logprobs=(-0.1, -0.15, -0.1)),
        "b": result("b", 40, 51, 70, logprobs=(-0.1, -9.0, -9.0)),  # another token than the likeliest, by 0.2
        "c": result("c", 40, 50, logprobs=(-0.1, -0.1)),
        "d": Result("d", "error"),
    }
    figures = compare(expected, found, chat)
    assert (figures["prompts"], figures["answered"]) == (4, 3)
    assert (figures["same_answers"], figures["tokens_compared"]) == (0.25, 6)
    assert figures["largest_difference"] == pytest.approx(0.05)
    assert figures["mean_difference"] == pytest.approx(0.05 / 6)
    second, third = figures["answers_that_differ"]
    assert (second["sample_id"], second["token"], second["other"]) == ("b", 1, chat.decode([51, 70]))
    assert second["margin"] == pytest.approx(0.2)
    assert (third["sample_id"], third["token"], third["margin"]) == ("c", 2, None)


def test_samples_that_the_reference_cannot_answer_do_not_count(chat: Chat) -> None:
    broken = Result("b", "error")
    figures = compare({"a": result("a", 40), "b": broken}, {"a": result("a", 40), "b": broken}, chat)
    assert (figures["prompts"], figures["same_answers"]) == (1, 1.0)
    assert exceeded(figures, (1.0, 1e-4)) == []


def test_bounds_that_are_exceeded_are_named(chat: Chat) -> None:
    expected = {name: result(name, 40, 50) for name in "ab"}
    unequal = {"a": result("a", 40, 50), "b": result("b", 40, 51)}
    near = {name: replace(answer, logprobs=(-0.1, -0.11)) for name, answer in expected.items()}
    for results, bounds, text in (
        (unequal, (1.0, 1e-4), "50.00% of the answers are the same; 100.00%"),
        (near, (1.0, 1e-4), "a log-probability differs by 0.01; 0.0001"),
    ):
        (message,) = exceeded(compare(expected, results, chat), bounds)
        assert message.startswith(text)
    for results, bounds in ((unequal, (0.5, 1e-4)), (near, (1.0, 0.02))):
        assert exceeded(compare(expected, results, chat), bounds) == []


@pytest.mark.parametrize("data", ["own", "demo"])
def test_native_has_the_answers_of_transformers(world: Path, data: str) -> None:
    words = ["--model", world / "model"]
    words += ["--annotations", world / "data/annotations.json"] if data == "own" else []
    values = ("model.dtype=float32", "inference.limit=6", "generation.max_tokens=6", "vision.nframes=3")
    words += [f"--set={value}" for value in (*values, f"engine.frame_cache_dir={world / 'cache'}")]
    words.append("--largest-difference=0")  # which no generator keeps
    command = [sys.executable, str(SKILL_ROOT / "benchmarks/parity.py"), *map(str, words)]
    done = forked.run(command, timeout=600)
    assert done.returncode == 1, done.stderr
    figures = json.loads(done.stdout)
    assert "a log-probability differs by " in done.stderr
    assert figures["samples"] == 6 and set(figures["seconds"]) == {"transformers", "native"}
    assert figures["native"]["same_answers"] == 1.0
    assert 0 < figures["native"]["largest_difference"] < 1e-4
