"""LoRA: what trains, what is exported, and that stock PEFT loads and merges it to the trainer's own weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from in_process import train_here
from peft import PeftModel
from safetensors.torch import load_file
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec
from transformers import Qwen3VLForConditionalGeneration

from vidqa.core.problem import ProblemError

OPTIONS = {
    "train.epoch": 2,
    "train.optm_lr": 2e-3,
    "policy.lora.r": 4,
    "policy.lora.lora_alpha": 8.0,
    "policy.lora.lora_dropout": 0.0,
    "policy.lora.target_modules": ["q_proj", "v_proj", "down_proj", "attn.qkv"],
    # The first that matches decides; by the alphabet the general one would be the first.
    "policy.lora.r_pattern": {r"layers\.0\.self_attn\.q_proj": 2, ".*q_proj": 4},
    "policy.lora.alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 6.0, ".*q_proj": 8.0},
    "policy.lora.modules_to_save": ["merger"],
    "validation.enable": True,
    "train.train_policy.dataset.test_size": 0.1,
}


def options(ranks: int, **changes: Any) -> dict[str, Any]:
    return {
        **OPTIONS,
        "policy.parallelism.dp_shard_size": ranks,
        "train.train_batch_per_replica": 6 // ranks,
        **changes,
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("lora")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder))
    place.run = folder / "run"
    run_engine("train", tiny_spec(folder, place.model, place.root, options(2)), place.run, ranks=2)
    place.adapter = place.run / "best"
    return place


def _base(world: SimpleNamespace) -> Any:
    return Qwen3VLForConditionalGeneration.from_pretrained(world.model, dtype=torch.float32)


def test_only_adapters_and_saved_modules_train(world: SimpleNamespace) -> None:
    table = json.loads((world.run / "run.json").read_text())["trainable"]
    for row in table:
        trains = "LoRA" in row["part"] or "modules_to_save" in row["part"]
        assert row["trainable"] == (row["parameters"] if trains else 0), row
    assert losses(world.run)[-1] < losses(world.run)[0]


def test_stock_peft_loads_the_adapter_with_nothing_left(world: SimpleNamespace) -> None:
    adapted = PeftModel.from_pretrained(_base(world), world.adapter)
    stored = load_file(world.adapter / "adapter_model.safetensors")
    loaded = dict(adapted.named_parameters())
    for name, tensor in stored.items():
        inside = [name.replace(".weight", ".default.weight"), _saved_module(name)]
        parameter = next(loaded[key] for key in inside if key in loaded)
        torch.testing.assert_close(parameter.data, tensor)
    assert any(".lora_B." in name and tensor.abs().max() > 0 for name, tensor in stored.items())
    assert stored["base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight"].shape[0] == 2
    assert stored["base_model.model.model.language_model.layers.1.self_attn.q_proj.lora_A.weight"].shape[0] == 4
    assert any(".visual." in name for name in stored)


def _saved_module(name: str) -> str:
    head, _, leaf = name.partition(".merger.")
    return f"{head}.merger.modules_to_save.default.{leaf}"


def test_the_merge_by_peft_is_base_plus_scaled_product(world: SimpleNamespace) -> None:
    merged = PeftModel.from_pretrained(_base(world), world.adapter).merge_and_unload().state_dict()
    stored = load_file(world.adapter / "adapter_model.safetensors")
    base = load_file(world.model / "model.safetensors")
    for layer, rank, alpha in ((0, 2, 6.0), (1, 4, 8.0)):
        name = f"model.language_model.layers.{layer}.self_attn.q_proj"
        a, b = (stored[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        expected = base[f"{name}.weight"] + (alpha / rank) * b @ a
        torch.testing.assert_close(merged[f"{name}.weight"], expected)


def test_the_proof_loaded_it_and_found_the_trainers_loss(world: SimpleNamespace) -> None:
    proof = json.loads((world.adapter / "proof.json").read_text())
    assert proof["reloaded_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-4)
    targets = json.loads((world.adapter / "adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)
    assert not (world.adapter / "config.json").exists()
    assert (world.adapter / "tokenizer.json").exists() and (world.adapter / "processor_config.json").exists()


def test_a_seed_may_be_a_time_of_day(world: SimpleNamespace, tmp_path: Path) -> None:
    """Which is more than a generator of PyTorch takes when it is multiplied."""
    seeds = {"train.seed": 20261231235959999, "train.max_num_steps": 1, "policy.lora.lora_dropout": 0.1}
    run = train_here(tiny_spec(tmp_path, world.model, world.root, options(1, **seeds)), tmp_path / "run")
    assert (run / "best").is_dir()


def test_one_rank_gives_the_adapter_of_two(world: SimpleNamespace, tmp_path: Path) -> None:
    run = train_here(tiny_spec(tmp_path, world.model, world.root, options(1)), tmp_path / "run")
    assert losses(run) == pytest.approx(losses(world.run), rel=1e-5)


def test_a_replicated_base_gives_the_adapter_of_a_sharded_one(world: SimpleNamespace, tmp_path: Path) -> None:
    mesh = {"policy.parallelism.dp_shard_size": 1, "policy.parallelism.dp_replicate_size": 2}
    run_engine("train", tiny_spec(tmp_path, world.model, world.root, options(2, **mesh)), tmp_path / "run", ranks=2)
    assert losses(tmp_path / "run") == pytest.approx(losses(world.run), rel=1e-5)
    ours, theirs = (load_file(run / "best/adapter_model.safetensors") for run in (tmp_path / "run", world.run))
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)


def test_a_target_that_matches_nothing_is_a_problem(world: SimpleNamespace, tmp_path: Path) -> None:
    over = options(1, **{"policy.lora.target_modules": ["q_prj"], "policy.lora.modules_to_save": None})
    spec = tiny_spec(tmp_path, world.model, world.root, over)
    with pytest.raises(ProblemError) as wrong:
        train_here(spec, tmp_path / "run")
    (problem,) = wrong.value.problems
    assert (problem.code, problem.exit_code) == ("ENGINE_NOTHING_TRAINS", 3)
