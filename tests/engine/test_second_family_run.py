"""Trainings of the second family, and what they leave for stock transformers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from in_process import train_here
from safetensors.torch import load_file, save_file
from tiny_world import losses, tiny_data, tiny_model, tiny_spec
from transformers import AutoModelForImageTextToText

OPTIONS = {"train.epoch": 3, "train.train_policy.dataset.test_size": 0.1, "validation.enable": True}
LORA = {"policy.lora.r": 4, "policy.lora.target_modules": ["q_proj", "attn.qkv", "up_proj"]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("second")
    return SimpleNamespace(folder=folder, model=tiny_model(folder, family="qwen2_5_vl"), root=tiny_data(folder))


def trained(world: SimpleNamespace, name: str, **over: object) -> Path:
    (world.folder / name).mkdir()
    spec = tiny_spec(world.folder / name, world.model, world.root, {**OPTIONS, **over})
    return train_here(spec, world.folder / name / "run")


def newest(run: Path) -> Path:
    return max((run / "safetensors").iterdir(), key=lambda folder: int(folder.name.partition("_")[2]))


def test_a_full_training_learns_and_stock_transformers_loads_its_export(world: SimpleNamespace) -> None:
    run = trained(world, "full")
    found, export = losses(run), newest(run)
    assert found[-1] < 0.9 * found[0]
    proof = json.loads((export / "proof.json").read_text())
    assert proof["reloaded_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-4)
    base, ours = load_file(world.model / "model.safetensors"), load_file(export / "model.safetensors")
    assert base.keys() == ours.keys() and any(name.startswith("visual.") for name in ours)
    assert all(not torch.equal(base[name], ours[name]) for name in ours)
    _, info = AutoModelForImageTextToText.from_pretrained(export, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_adapters_of_both_towers_are_proved(world: SimpleNamespace) -> None:
    export = newest(trained(world, "lora", **LORA))
    proof = json.loads((export / "proof.json").read_text())
    assert proof["reloaded_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-4)
    names = set(load_file(export / "adapter_model.safetensors"))
    assert any(".visual.blocks.0.mlp.up_proj." in name for name in names)


def test_files_with_the_names_of_the_classes_are_read_too(world: SimpleNamespace, tmp_path: Path) -> None:
    from vidqa.engine.loading.safetensors_reader import model_tensors
    from vidqa.families import family_of

    rename = family_of(world.model).parameter_name
    for path in world.model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(world.model / "model.safetensors")
    save_file({rename(name): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert model_tensors(tmp_path).keys() == model_tensors(world.model).keys() != tensors.keys()
