"""vLLM on the CPU: the conformance suite, evaluations, and what becomes of a process that cannot or may not go on.

What needs vLLM takes it from the environment that `make vllm` makes, and is skipped where there is none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from generator_conformance import *  # noqa: F403
from generator_conformance import GREEDY, World, changed
from peft import LoraConfig, get_peft_model
from tiny_world import run_engine

from vidqa.contract.cli import SKILL_ROOT
from vidqa.contract.environment import foreign_environment
from vidqa.contract.problem import ProblemError
from vidqa.engine.families import torch_half
from vidqa.engine.generators._base import Generator
from vidqa.engine.generators.vllm import VLLM, VllmSession, contracted
from vidqa.spec import Layer, dump, resolve

PYTHON = SKILL_ROOT / ".vllm/bin/python"


class Kept(VllmSession):
    """A session whose process outlives it: to start one takes most of a minute."""

    def close(self) -> None:
        assert not self.rows and not self.pending


@pytest.fixture(scope="module")
def python() -> str:
    if not PYTHON.exists():
        pytest.skip("there is no environment with vLLM; `make vllm` makes it")
    return str(PYTHON)


@pytest.fixture(scope="module")
def session(world: World, python: str) -> Iterator[VllmSession]:
    session = VLLM.open(world.settings(vllm_python=python, batch_size=8))
    yield session
    session.close()


@pytest.fixture
def generator(session: VllmSession) -> Generator:
    return Generator("vllm", lambda settings: Kept(session.process, settings))


def adapter_of(world: World, folder: Path, targets: list[str], **more: Any) -> Path:
    """An adapter that changes the model's answers."""
    torch.manual_seed(5)
    model = torch_half(world.planner.family).model_class.from_pretrained(world.folder, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=targets, **more))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(folder)
    return folder


def evaluated(world: World, folder: Path, **keys: Any) -> dict[str, str]:
    """The answers of an evaluation under torchrun, by sample."""
    data = world.folder.parent / "data"
    table = {
        "dataset.annotation_path": str(data / "annotations.json"),
        "dataset.media_dir": str(data),
        "model.model_name": str(world.folder),
        "model.max_length": 4096,
        "model.dtype": "float32",
        "vision.nframes": 5,
        "generation.max_tokens": 6,
        "results_dir": str(folder / "results"),
        "evaluation.batch_size": 4,
        "evaluation.generator": "transformers",
        "engine.frame_cache_dir": str(folder.parent / "cache"),
        **keys,
    }
    folder.mkdir()
    (folder / "spec.toml").write_text(dump(resolve("evaluate", [Layer("test", table)]).spec), encoding="utf-8")
    run_engine("evaluate", folder / "spec.toml", folder / "run")
    recipe = json.loads((folder / "run/recipe.json").read_text())
    assert recipe["generation"].get("generator", "transformers") == table["evaluation.generator"]
    return {item["sample_id"]: item["response"] for item in json.loads((folder / "run/results.json").read_text())}


def test_an_evaluation_of_an_adapter_has_the_answers_of_the_reference(
    world: World, python: str, tmp_path: Path
) -> None:
    adapter = adapter_of(world, tmp_path / "adapter", ["q_proj", "v_proj", "down_proj"])
    lora = {"model.model_name": str(adapter), "model.enable_lora": True, "model.base_model_path": str(world.folder)}
    vllm = {"evaluation.generator": "vllm", "engine.vllm.python": python}
    expected = evaluated(world, tmp_path / "reference", **lora)
    assert evaluated(world, tmp_path / "vllm", **lora, **vllm) == expected
    assert expected != evaluated(world, tmp_path / "base")


@pytest.mark.parametrize(
    ("targets", "more", "named"),
    [
        (["q_proj", "attn.qkv"], {}, ".visual."),
        (["q_proj"], {"modules_to_save": ["merger"]}, "modules_to_save"),
        (["q_proj"], {"rank_pattern": {"layers.0.self_attn.q_proj": 2}}, "rank_pattern"),
        (["q_proj"], {"use_dora": True}, "use_dora"),
    ],
    ids=["vision", "saved modules", "ranks", "dora"],
)
def test_adapter_on_modules_that_vllm_ignores_is_refused(
    world: World, tmp_path: Path, targets: list[str], more: dict[str, Any], named: str
) -> None:
    adapter = adapter_of(world, tmp_path / "adapter", targets, **more)
    with pytest.raises(ProblemError) as refused:
        VLLM.open(world.settings(folder=adapter, base=world.folder, vllm_python=sys.executable))
    (problem,) = refused.value.problems
    assert problem.code == "ENGINE_VLLM_ADAPTER" and named in problem.message and "--merge" in problem.remedy


@pytest.mark.parametrize(
    ("python", "message"),
    [(sys.executable, "the process ended with exit code 1"), ("/absent/python", "No such file"), ("/bin/true", "0")],
    ids=["without vllm", "absent", "no Python"],
)
def test_interpreter_without_vllm_is_a_problem(world: World, python: str, message: str) -> None:
    with pytest.raises(ProblemError) as failed:
        VLLM.open(world.settings(vllm_python=python))
    (problem,) = failed.value.problems
    assert (problem.code, problem.where) == ("ENGINE_VLLM_FAILED", python) and message in problem.message
    assert "make vllm" in problem.remedy


def test_a_prompt_has_one_placeholder_for_each_medium(world: World) -> None:
    chat = world.planner.chat
    slots = {slot: kind for kind, slot in chat.slot_ids.items()}
    for request in world.prompts:
        token_ids = contracted(request, world.planner)
        assert [slots[token] for token in token_ids if token in slots] == [plan.kind for plan in request.plans]
        plans, expanded = iter(request.plans), list[int]()
        for token in token_ids:
            expanded += chat.expansion(next(plans)).tolist() if token in slots else [token]
        assert expanded == request.token_ids.tolist()


def test_the_process_knows_nothing_of_torchrun_or_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "PYTHONPATH", "VIRTUAL_ENV")
    for name in ours:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", "/models")
    found = foreign_environment(VLLM_X="y")
    assert not set(ours) & set(found) and found["HF_HOME"] == "/models" and found["VLLM_X"] == "y"


def test_prompt_refused_by_vllm_is_the_problem_of_that_prompt(world: World, generator: Generator) -> None:
    wrong = replace(world.prompts[0], top_logprobs=21)
    answering = generator.open(world.settings()).generate([wrong, world.prompts[1]])
    found = {result.id: result for some in answering for result in some}
    (problem,) = found[wrong.id].problems
    assert problem.code == "ENGINE_VLLM_PROMPT" and "21" in problem.message
    assert list(found[world.prompts[1].id].token_ids) == world.expected(world.prompts[1])


def test_a_prompt_that_becomes_other_tokens_is_an_error(world: World, generator: Generator) -> None:
    """Here by frames of another time than the prompt says."""
    video = next(request for request in world.prompts if [plan.kind for plan in request.plans] == ["video"])
    later = [replace(plan, patch_times_s=tuple(time + 7 for time in plan.patch_times_s)) for plan in video.plans]
    (other,) = changed([video], plans=later)
    ((result,),) = generator.open(world.settings()).generate([other])
    assert [problem.code for problem in result.problems] == ["ENGINE_VLLM_PROMPT"]
    assert "differ" in result.problems[0].message


def test_abandoned_session_leaves_no_rows_behind(world: World, generator: Generator) -> None:
    long = changed(world.prompts, sampling=replace(GREEDY, max_tokens=200), stop_ids=())
    session = generator.open(world.settings(batch_size=4))
    results = session.generate([*world.prompts[:1], *long])
    next(results)
    results.close()
    assert not session.rows and not session.pending
    ((result,),) = session.generate(world.prompts[:1])
    assert list(result.token_ids) == world.expected(world.prompts[0])


def test_killed_process_ends_answering_with_a_problem(world: World, session: VllmSession) -> None:
    """The last test here: the process is that of the others."""
    answering = session.generate(changed(world.prompts, sampling=replace(GREEDY, max_tokens=200), stop_ids=()))
    os.kill(session.process.process.pid, signal.SIGKILL)
    with pytest.raises(ProblemError) as ended:
        list(answering)
    assert [problem.code for problem in ended.value.problems] == ["ENGINE_VLLM_FAILED"]
    assert "-9" in ended.value.problems[0].message
