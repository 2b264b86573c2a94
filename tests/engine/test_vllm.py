"""vLLM loads what is exported, and its greedy answers to planned prompts are those of the native generator.

Needs the environment that `make vllm` makes; without it these tests are skipped.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from generator_world import World, changed, family, one_thread, world  # noqa: F401  fixtures
from peft import inject_adapter_in_model
from quantized_folder import quantized
from tiny_world import tiny_spec

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.environment import foreign_environment
from vidqa.engine.distributed import single_process_world
from vidqa.engine.export._base import Trained
from vidqa.engine.export.adapter import ADAPTER, MERGED, merged_adapter
from vidqa.engine.generators import open_native
from vidqa.engine.loading.freeze import is_adapter, lora_config
from vidqa.engine.loading.load import meta_model
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import Planner
from vidqa.spec import load

PYTHON = SKILL_ROOT / ".vllm/bin/python"
PROGRAM = Path(__file__).with_name("vllm_answers.py")
ON_CPU = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
# Of a log-probability in bf16: activations that are rounded to 8 bits round the other way where kernels differ in the
# last bit. The model that is not quantized is 0.004 apart.
ROUNDING = 0.05
NO_CPU_KERNEL = pytest.mark.skip(reason="vLLM has no CPU kernel for it; on a GPU it has")


def contracted(request: Request, planner: Planner) -> list[int]:
    """The prompt for vLLM: one placeholder for each medium, which vLLM expands."""
    token_ids, chat, start = request.token_ids.tolist(), planner.chat, 0
    for plan in request.plans:
        slot, expansion = chat.slot_ids[plan.kind], chat.expansion(plan).tolist()
        start = token_ids.index(slot, start) - expansion.index(slot)
        token_ids[start : start + len(expansion)] = [slot]
        start += 1
    return token_ids


def vllm_answers(model: Path, dtype: str, world: World, folder: Path) -> dict[str, tuple[list[int], list[float]]]:  # noqa: F811
    """Token ids and their log-probabilities by prompt id."""
    folder.mkdir()
    depth, prompts = world.planner.geometry.video.temporal_patch_size, []
    for request in world.prompts:
        media = []
        for number, (plan, frames) in enumerate(zip(request.plans, request.frames(), strict=True)):
            path = folder / f"{request.id}-{number}.npy"
            np.save(path, frames)
            # Every frame of a patch gets the patch's time: vLLM takes the mean of its first and its last one.
            times_s = np.repeat(plan.patch_times_s, depth).tolist()
            media.append({"kind": plan.kind, "file": str(path), "times_s": times_s})
        prompts.append(
            {
                "id": request.id,
                "token_ids": contracted(request, world.planner),
                "planned": request.token_ids.tolist(),
                "stop_ids": list(request.stop_ids),
                "max_tokens": request.sampling.max_tokens,
                "media": media,
            }
        )
    (folder / "prompts.json").write_text(json.dumps(prompts))
    words = [PYTHON, "-I", "-W", "ignore", PROGRAM, model, dtype, folder / "prompts.json", folder / "answers.json"]
    subprocess.run([str(word) for word in words], check=True, env=foreign_environment(**ON_CPU), timeout=600)
    return json.loads((folder / "answers.json").read_text())


def native_answers(model: Path, dtype: torch.dtype, world: World) -> dict[str, Result]:  # noqa: F811
    settings = replace(world.settings(folder=model, batch_size=8), dtype=dtype)
    with closing(open_native(settings)) as session:
        requests = changed(world.prompts, top_logprobs=20)
        return {result.id: result for results in session.generate(requests) for result in results}


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    if not PYTHON.exists():
        pytest.skip("there is no environment with vLLM; `make vllm` makes it")


def test_a_merged_export_answers_as_native_does(world: World, tmp_path: Path) -> None:  # noqa: F811
    lora = {"policy.lora.r": 4, "policy.lora.target_modules": ["q_proj", "v_proj", "down_proj", "attn.qkv"]}
    spec = load(tiny_spec(tmp_path, world.folder, tmp_path, lora), "train")
    torch.manual_seed(5)
    model = meta_model(world.folder)
    inject_adapter_in_model(lora_config(spec.policy.lora), model, "default", low_cpu_mem_usage=True)
    own = {name: torch.randn(part.shape) * 0.3 for name, part in model.named_parameters() if is_adapter(name)}
    adapter = ADAPTER.write(
        Trained(tmp_path, world.folder, spec.policy.lora, torch.float32, own, own), "lora", single_process_world()
    )
    merged = merged_adapter(tmp_path, world.folder, adapter, torch.float32, None)
    export = MERGED.write(merged, "merged", single_process_world())
    expected = native_answers(export, torch.float32, world)
    assert any(list(expected[request.id].token_ids) != world.expected(request) for request in world.prompts)
    answers = vllm_answers(export, "float32", world, tmp_path / "prompts")
    assert {name: token_ids for name, (token_ids, _) in answers.items()} == {
        name: list(result.token_ids) for name, result in expected.items()
    }
    for name, (_, logprobs) in answers.items():
        assert logprobs == pytest.approx(expected[name].logprobs, abs=1e-3)


@pytest.mark.parametrize(
    "scheme",
    [
        "FP8_DYNAMIC",
        "W8A8",
        pytest.param("W4A16", marks=NO_CPU_KERNEL),
        pytest.param("NVFP4A16", marks=NO_CPU_KERNEL),
    ],
)
def test_a_quantized_export_answers_as_native_does(world: World, tmp_path: Path, scheme: str) -> None:  # noqa: F811
    """Up to the first token for which rounding decides between two that are as likely."""
    folder = quantized(tmp_path / scheme, world.folder, scheme, dtype=torch.bfloat16)
    expected = native_answers(folder, torch.bfloat16, world)
    answers = vllm_answers(folder, "bfloat16", world, tmp_path / "prompts")
    assert answers.keys() == expected.keys() and len(answers) == len(world.prompts)
    for name, (token_ids, logprobs) in answers.items():
        result = expected[name]
        for place, (token, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
            likeliest = dict(result.top_logprobs[place])
            assert likeliest[token] == pytest.approx(logprob, abs=ROUNDING), name
            if token != result.token_ids[place]:
                assert result.logprobs[place] - likeliest[token] < 2 * ROUNDING, name
                break


def test_a_prompt_has_one_placeholder_for_each_medium(world: World) -> None:  # noqa: F811
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
    variables = foreign_environment(VLLM_X="y")
    assert not set(ours) & set(variables) and variables["HF_HOME"] == "/models" and variables["VLLM_X"] == "y"
