"""Parity: what is counted between the answers of generators, and the whole comparison as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from forked import run
from tiny_world import tiny_data, tiny_model

from vidqa.contract.cli import SKILL_ROOT
from vidqa.engine.generators._base import Result
from vidqa.engine.parity import beyond, compare
from vidqa.engine.problems import ENGINE_VLLM_PROMPT
from vidqa.families.chat import Chat, load_chat
from vidqa.jobs.parity import shown
from vidqa.spec import Layer, dump, resolve

PYTHON = SKILL_ROOT / ".vllm/bin/python"


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
        "d": Result("d", "error", problems=(ENGINE_VLLM_PROMPT.at("d", "1 of 3 differ"),)),
    }
    figures = compare(expected, found, chat)
    assert (figures["prompts"], figures["prompts_with_planned_ids"], figures["answered"]) == (4, 3, 3)
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
    assert beyond("native", "transformers", figures, (1.0, 1e-4)) == []


def test_figures_out_of_bounds_are_a_problem(chat: Chat) -> None:
    expected = {name: result(name, 40, 50) for name in "ab"}
    apart = {"a": result("a", 40, 50), "b": result("b", 40, 51)}
    near = {name: replace(each, logprobs=(-0.1, -0.11)) for name, each in expected.items()}
    refused = {"a": result("a", 40, 50), "b": Result("b", "error", problems=(ENGINE_VLLM_PROMPT.at("b", "no"),))}
    for found, bounds, said in (
        (apart, (1.0, 1e-4), "50.00% of its answers are the same, 100.00%"),
        (near, (1.0, 1e-4), "a log-probability is 0.01 from that of native, at most 0.0001"),
        (refused, (0.5, 1e-4), "1 of 2 prompts have other tokens"),
    ):
        (problem,) = beyond("vllm", "native", compare(expected, found, chat), bounds)
        assert (problem.code, problem.where, problem.exit_code) == ("ENGINE_GENERATORS_DIFFER", "vllm", 5)
        assert problem.message.startswith(said)
    for found, bounds in ((apart, (0.5, 1e-4)), (near, (1.0, 0.02))):
        assert beyond("vllm", "native", compare(expected, found, chat), bounds) == []


def test_native_has_the_answers_of_transformers(world: Path, tmp_path: Path) -> None:
    table = {
        "dataset.annotation_path": str(world / "data/annotations.json"),
        "model.model_name": str(world / "model"),
        "model.dtype": "float32",
        "generation.max_tokens": 6,
        "results_dir": str(tmp_path),
        "engine.frame_cache_dir": str(tmp_path / "cache"),
    }
    (tmp_path / "spec.toml").write_text(dump(resolve("inference", [Layer("test", table)]).spec), encoding="utf-8")
    words = ["--spec", tmp_path / "spec.toml", "--generators", "native,transformers", "--out", tmp_path / "out.json"]
    words.append("--largest-difference=0")  # which no generator keeps
    done = run([sys.executable, "-m", "vidqa.engine.parity", *map(str, words)], timeout=600)
    said = json.loads((tmp_path / "out.json").read_text())
    (problem,), figures = said["problems"], said["figures"]
    assert done.returncode == 5 and (problem["code"], problem["where"]) == ("ENGINE_GENERATORS_DIFFER", "native")
    assert problem["message"].startswith("a log-probability is ") and ";" not in problem["message"]
    assert (figures["reference"], figures["samples"]) == ("transformers", 6)
    assert figures["generators"]["native"]["same_answers"] == 1.0
    assert 0 < figures["generators"]["native"]["largest_difference"] < 1e-4
    assert f"native                 6/6{'100.00%':>14}" in shown(figures)


@pytest.mark.skipif(not PYTHON.exists(), reason="there is no environment with vLLM; `make vllm` makes it")
def test_the_script_compares_all_three_on_clips_of_its_own(world: Path) -> None:
    words = ["--model", str(world / "model"), "--generators", "transformers,native,vllm", "--json"]
    sets = ["model.dtype=float32", "inference.limit=6", "generation.max_tokens=4", "vision.nframes=3"]
    command = [sys.executable, str(SKILL_ROOT / "scripts/parity.py"), *words]
    done = subprocess.run([*command, *(f"--set={each}" for each in sets)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["data"]
    assert figures["samples"] == 6 and set(figures["generators"]) == {"native", "vllm"}
    for found in figures["generators"].values():
        assert (found["prompts_with_planned_ids"], found["same_answers"]) == (6, 1.0)
        assert found["largest_difference"] < 1e-5
