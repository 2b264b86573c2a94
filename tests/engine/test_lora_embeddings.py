"""LoRA on the token embeddings and on the head: it trains, and stock PEFT has the trainer's loss, merged or not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from clips import decode_frames
from in_process import run_here, train_here
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from vidqa.data import load_records
from vidqa.engine.data.pixels import resize_frames
from vidqa.engine.distributed import single_process_world
from vidqa.engine.export import load_export
from vidqa.engine.export.adapter import MERGED, merged_adapter
from vidqa.engine.export.proof import stock_loss
from vidqa.planning.samples import training_planner
from vidqa.spec import Layer, dump, load, resolve
from vidqa.video.image import decode_image

pytestmark = pytest.mark.filterwarnings("ignore:.*tie_word_embeddings")
LORA: dict[str, dict[str, Any]] = {
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "both": {"target_modules": ["lm_head", "embed_tokens"]},
    "a copy of the head": {"target_modules": ["embed_tokens"], "modules_to_save": ["lm_head"]},
    "patches": {"target_modules": ["patch_embed.proj", "pos_embed"]},
}
OPTIONS = {
    "train.max_num_steps": 4,
    "train.epoch": 4,
    "train.train_batch_per_replica": 6,
    "train.optm_lr": 2e-2,
    "policy.lora.r": 4,
    "policy.lora.lora_alpha": 8.0,
    "policy.lora.lora_dropout": 0.0,
}


OWN_HEAD = ("head", "embeddings", "patches")
TIED_HEAD = ("head", "embeddings", "both", "a copy of the head")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SimpleNamespace]:
    """A model whose head has weights of its own, and one whose head is the embeddings."""
    folder = tmp_path_factory.mktemp("embeddings")
    root = tiny_data(folder, clips=3)
    places = {name: folder / name for name in ("own", "tied")}
    return {
        name: SimpleNamespace(folder=place, model=tiny_model(place, tie=name == "tied"), root=root, runs={})
        for name, place in places.items()
    }


def spec_of(world: SimpleNamespace, folder: Path, lora: dict[str, Any], **over: Any) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    keys = {f"policy.lora.{key}": value for key, value in lora.items()}
    return tiny_spec(folder, world.model, world.root, {**OPTIONS, **keys, **over})


@pytest.fixture(params=[*(("own", name) for name in OWN_HEAD), *(("tied", name) for name in TIED_HEAD)], ids=" ".join)
def trained(worlds: dict[str, SimpleNamespace], request: pytest.FixtureRequest) -> SimpleNamespace:
    head, name = request.param
    world = worlds[head]
    if name not in world.runs:
        place = world.folder / name
        spec = spec_of(world, place, LORA[name])
        world.runs[name] = SimpleNamespace(name=name, spec=spec, run=train_here(spec, place / "run"))
    found = world.runs[name]
    return SimpleNamespace(**vars(found), world=world, adapter=(found.run / "best").resolve())


def base_of(world: SimpleNamespace) -> Any:
    return Qwen3VLForConditionalGeneration.from_pretrained(world.model, dtype=torch.float32).eval()


def loss_of(trained: SimpleNamespace, model: Any) -> float:
    """Of the sample that the run proved its export with."""
    proof = json.loads((trained.adapter / "proof.json").read_text())
    planner = training_planner(load(trained.spec, "train"), trained.world.model)
    samples, _ = planner.plan(load_records(trained.world.root / "annotations.json", trained.world.root))
    sample = next(each for each in samples if each.record.id == proof["sample_id"])
    frames = [frames_of(ref, plan) for ref, plan in zip(sample.record.media, sample.plans, strict=True)]
    return stock_loss(model, planner, sample, frames)


def frames_of(ref: Any, plan: Any) -> np.ndarray:
    whole = decode_image(ref.path) if ref.kind == "image" else decode_frames(ref.path, None, plan.indices)
    return resize_frames(whole, plan.height, plan.width)


def trainer_loss(trained: SimpleNamespace) -> float:
    return json.loads((trained.adapter / "proof.json").read_text())["trainer_loss"]


def test_every_matrix_learns_and_has_the_name_and_shape_that_peft_gives_it(trained: SimpleNamespace) -> None:
    stored = load_file(trained.adapter / "adapter_model.safetensors")
    adapted = PeftModel.from_pretrained(base_of(trained.world), trained.adapter)
    theirs = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    assert {name: t.shape for name, t in stored.items()} == {name: t.shape for name, t in theirs.items()}
    assert all(torch.equal(stored[name], tensor) for name, tensor in theirs.items())
    assert all(tensor.abs().max() > 0 for tensor in stored.values())
    vocabulary, width = adapted.get_base_model().get_input_embeddings().weight.shape
    name = "base_model.model.model.language_model.embed_tokens.lora_embedding_"
    if trained.name in ("embeddings", "both"):
        assert stored[f"{name}A"].shape == (4, vocabulary) and stored[f"{name}B"].shape == (width, 4)
    if trained.name in ("head", "both"):
        assert stored["base_model.model.lm_head.lora_A.weight"].shape == (4, width)
    assert not any("base_layer" in name for name in stored)


def test_stock_peft_has_the_trainers_loss_merged_or_not(trained: SimpleNamespace, tmp_path: Path) -> None:
    adapted = PeftModel.from_pretrained(base_of(trained.world), trained.adapter).eval()
    expected = pytest.approx(trainer_loss(trained), rel=1e-5)
    assert loss_of(trained, adapted.get_base_model()) == expected
    assert loss_of(trained, merged(trained, trained.adapter)) == expected
    adapted.save_pretrained(tmp_path)  # adapters of embeddings with the base model's embeddings
    assert loss_of(trained, merged(trained, tmp_path)) == expected
    assert loss_of(trained, base_of(trained.world)) != pytest.approx(trainer_loss(trained), rel=1e-3)


def test_a_merged_export_has_the_weights_that_stock_peft_merges(trained: SimpleNamespace, tmp_path: Path) -> None:
    """Also of a head that was the embeddings, which then is one of its own, and of layers that are no linear ones."""
    model = trained.world.model
    whole = merged_adapter(tmp_path, model, trained.adapter, torch.float32, None)
    export = MERGED.write(whole, "whole", single_process_world())
    MERGED.check(export, model)
    ours, theirs = load_file(export / "model.safetensors"), merged(trained, trained.adapter).state_dict()
    tied = {} if "lm_head.weight" in ours else {"lm_head.weight"}
    assert ours.keys() == theirs.keys() - tied
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    again = MERGED.load(export, model, torch.float32, torch.device("cpu")).state_dict()
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)


def merged(trained: SimpleNamespace, adapter: Path) -> Any:
    return load_export(adapter, trained.world.model, torch.float32, torch.device("cpu"))


def test_training_begins_as_the_base_model(trained: SimpleNamespace, tmp_path: Path) -> None:
    world = trained.world
    if "usual" not in world.runs:
        spec = spec_of(world, tmp_path, {"target_modules": ["q_proj"]}, **{"train.max_num_steps": 1})
        world.runs["usual"] = train_here(spec, tmp_path / "run")
    assert losses(trained.run)[0] == pytest.approx(losses(world.runs["usual"])[0], rel=1e-6)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(trained: SimpleNamespace, tmp_path: Path) -> None:
    lora = LORA[trained.name]
    train_here(spec_of(trained.world, tmp_path, lora), tmp_path / "run", stop_after=2)
    train_here(spec_of(trained.world, tmp_path, lora, **{"train.resume": True}), tmp_path / "run")
    ours, theirs = (load_file(run / "best/adapter_model.safetensors") for run in (tmp_path / "run", trained.run))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def evaluated(world: SimpleNamespace, folder: Path, **model: Any) -> list[str]:
    table = {
        "dataset.annotation_path": str(world.root / "annotations.json"),
        "dataset.media_dir": str(world.root),
        "results_dir": str(folder),
        "vision.nframes": 4,
        "model.dtype": "float32",
        "model.max_length": 4096,
        "generation.max_tokens": 8,
        "engine.frame_cache_dir": str(world.root.parent / "cache"),
        **{f"model.{key}": value for key, value in model.items()},
    }
    folder.mkdir()
    path = folder / "spec.toml"
    path.write_text(dump(resolve("evaluate", [Layer("test", table)]).spec), encoding="utf-8")
    run_here("evaluate", path, folder)
    return [each["response"] for each in json.loads((folder / "results.json").read_text())]


def test_an_adapter_is_evaluated_as_the_stored_merged_model_is(trained: SimpleNamespace, tmp_path: Path) -> None:
    world, whole = trained.world, tmp_path / "merged"
    merged(trained, trained.adapter).save_pretrained(whole)
    AutoProcessor.from_pretrained(world.model).save_pretrained(whole)
    adapter = {"model_name": str(trained.adapter), "enable_lora": True, "base_model_path": str(world.model)}
    answers = evaluated(world, tmp_path / "adapter", **adapter)
    assert answers == evaluated(world, tmp_path / "whole", model_name=str(whole))
    again = load_export(whole, None, torch.float32, torch.device("cpu"))
    assert loss_of(trained, again) == pytest.approx(trainer_loss(trained), rel=1e-5)


def test_two_ranks_give_the_adapter_of_one(worlds: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    world = worlds["tied"]
    alone = train_here(spec_of(world, tmp_path, LORA["both"]), tmp_path / "alone")
    mesh = {"policy.parallelism.dp_shard_size": 2, "train.train_batch_per_replica": 3}
    run_engine("train", spec_of(world, tmp_path, LORA["both"], **mesh), tmp_path / "run", ranks=2)
    assert losses(tmp_path / "run") == pytest.approx(losses(alone), rel=1e-5)
    ours, theirs = (load_file(run / "best/adapter_model.safetensors") for run in (tmp_path / "run", alone))
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)
