"""A training that begins with an adapter: of PEFT itself, or of an earlier run; with a new optimizer, or resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from in_process import train_here
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec
from transformers import Qwen3VLForConditionalGeneration

from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.engine.data.frames import open_frames
from vidqa.engine.export.proof import token_losses
from vidqa.planning.samples import training_planner
from vidqa.preflight.report import preflight
from vidqa.spec import dump, load
from vidqa.spec.build import Request, build

TARGETS = r".*language_model.*\.(q_proj|down_proj)"  # a regular expression, as ms-swift writes it
QUICK = {"train.epoch": 1, "train.optm_lr": 2e-3, "policy.lora.lora_dropout": 0.0, "train.train_batch_per_replica": 7}


def foreign_adapter(world: SimpleNamespace, folder: Path, **options: Any) -> Path:
    """An adapter with random matrices, stored by PEFT."""
    torch.manual_seed(3)
    base = Qwen3VLForConditionalGeneration.from_pretrained(world.model, dtype=torch.float32)
    options = {"r": 4, "lora_alpha": 6, "target_modules": TARGETS, "init_lora_weights": False, **options}
    get_peft_model(base, LoraConfig(**options)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("continued")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder))
    place.adapter = foreign_adapter(place, folder / "foreign")
    lora = {**QUICK, "policy.lora.r": 4, "policy.lora.target_modules": ["q_proj", "v_proj"]}
    spec = tiny_spec(folder, place.model, place.root, lora)
    place.run = train_here(spec, folder / "run")
    shutil.copy(spec, place.run / "spec.toml")  # as a launch leaves it there
    return place


def continuing(world: SimpleNamespace, folder: Path, adapter: Path, **changes: Any) -> Path:
    """A spec as build_spec.py --model ADAPTER makes it, in the tiny world."""
    spec = build(
        Request("train", model=str(adapter), sets=(f"custom.train_dataset.annotation_path={world.root}",))
    ).spec
    lora = {f"policy.lora.{key}": value for key, value in spec.policy.lora.model_dump().items() if value is not None}
    assert Path(spec.policy.lora.lora_path) == adapter
    return tiny_spec(folder, world.model, world.root, {**lora, **QUICK, **changes})


def stock_loss(world: SimpleNamespace, spec: Path, adapter: Path) -> float:
    """The mean loss of all samples by PEFT's own PeftModel."""
    base = Qwen3VLForConditionalGeneration.from_pretrained(world.model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter).eval().base_model.model
    settings = load(spec, "train")
    planner = training_planner(settings, world.model)
    samples, _ = planner.plan(load_records(str(world.root / "annotations.json"), str(world.root)))
    with open_frames(settings.engine, 1) as source:
        frames, _ = source.collect(source.request(samples))
    parts = [token_losses(model, planner, *pair) for pair in zip(samples, frames, strict=True)]
    return torch.cat(parts).double().mean().item()


def test_an_adapter_of_peft_begins_with_its_own_loss(world: SimpleNamespace, tmp_path: Path) -> None:
    changes = {"train.train_batch_per_replica": 14, "train.max_num_steps": 1}
    spec = continuing(world, tmp_path, world.adapter, **changes)
    run = train_here(spec, tmp_path / "run")
    assert losses(run)[0] == pytest.approx(stock_loss(world, spec, world.adapter), abs=1e-5)
    proof = json.loads((run / "best/proof.json").read_text())  # exported and loaded again by PEFT
    assert proof["reloaded_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-4)
    assert (
        load_file(run / "best/adapter_model.safetensors").keys()
        == load_file(world.adapter / "adapter_model.safetensors").keys()
    )


def test_ranks_read_their_rows(world: SimpleNamespace, tmp_path: Path) -> None:
    changes = {"train.train_batch_per_replica": 7, "policy.parallelism.dp_shard_size": 2, "train.max_num_steps": 1}
    spec = continuing(world, tmp_path, world.adapter, **changes)
    run_engine("train", spec, tmp_path / "run", ranks=2)
    assert losses(tmp_path / "run")[0] == pytest.approx(stock_loss(world, spec, world.adapter), abs=1e-5)


def test_saved_modules_and_ranks_by_module_are_taken_over(world: SimpleNamespace, tmp_path: Path) -> None:
    options = {"target_modules": ["q_proj"], "modules_to_save": ["merger"], "rank_pattern": {r"layers\.0.*q_proj": 2}}
    adapter = foreign_adapter(world, tmp_path / "adapter", **options, use_rslora=True)
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({name: value * 1.01 for name, value in weights.items()}, adapter / "adapter_model.safetensors")
    spec = continuing(world, tmp_path, adapter, **{"train.train_batch_per_replica": 14, "train.max_num_steps": 1})
    run = train_here(spec, tmp_path / "run")
    assert losses(run)[0] == pytest.approx(stock_loss(world, spec, adapter), abs=1e-5)


def test_a_run_resumes_or_goes_on_from_its_adapter_with_a_new_optimizer(world: SimpleNamespace, tmp_path: Path) -> None:
    requests = [
        Request("train", parent_run=world.run, results_dir=str(tmp_path), sets=("train.epoch=2", *sets))
        for sets in ((), ("train.resume=false",))
    ]
    specs = [build(request).spec for request in requests]
    assert [spec.train.resume for spec in specs] == [str(world.run / "checkpoints/epoch_1"), False]
    assert {spec.policy.lora.lora_path for spec in specs} == {str(world.run / "safetensors/epoch_1")}
    runs = []
    for number, spec in enumerate(specs):
        (file := tmp_path / f"{number}.toml").write_text(dump(spec))
        runs.append(losses(train_here(file, tmp_path / f"run{number}")))
    resumed, begun = runs
    assert len(resumed) == 2 and len(begun) == 4  # steps 3 and 4, against an epoch more than the parent's
    base = losses(world.run)
    assert begun[0] < base[0]  # it knows what the parent learned


def test_an_adapter_is_a_parent_with_its_frames(world: SimpleNamespace) -> None:
    best = world.run / "best"
    by_parent = build(Request("train", parent_run=best, sets=(f"custom.train_dataset.annotation_path={world.root}",)))
    spec = by_parent.spec
    assert (spec.custom.vision.nframes, spec.policy.model_name_or_path) == (4, str(world.model))
    assert (spec.policy.lora.r, spec.policy.lora.target_modules) == (4, ["q_proj", "v_proj"])
    with pytest.raises(ProblemError, match="is an adapter, not a run"):
        build(Request("train", parent_run=best, which="step_1"))


@pytest.mark.parametrize(
    ("sets", "code", "part"),
    [
        (("policy.lora.r=16",), "SPEC_CONFLICT", "it is 16, and 4 in the adapter"),
        (('policy.lora.target_modules=["k_proj"]',), "SPEC_CONFLICT", "k_proj"),
        (("policy.lora.lora_alpha=3.0",), "SPEC_CONFLICT", "and 6.0 in the adapter"),
        (("policy.lora.lora_path=hf_model://a/b",), "SPEC_VALUE", "is not a folder"),
    ],
)
def test_another_rank_target_or_place_is_a_problem(
    world: SimpleNamespace, sets: tuple[str, ...], code: str, part: str
) -> None:
    with pytest.raises(ProblemError) as wrong:
        build(Request("train", model=str(world.adapter), sets=("custom.train_dataset.annotation_path=/d", *sets)))
    assert any(p.code == code and part in p.message for p in wrong.value.problems), wrong.value.problems


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"use_dora": True}, "SPEC_NOT_SUPPORTED"),
        ({"peft_type": "IA3"}, "SPEC_NOT_SUPPORTED"),
        (None, "SPEC_PARENT_RUN"),
    ],
)
def test_an_adapter_of_another_kind_is_a_problem(
    world: SimpleNamespace, tmp_path: Path, change: dict[str, Any] | None, code: str
) -> None:
    shutil.copytree(world.adapter, tmp_path / "a")
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    (tmp_path / "a/adapter_config.json").write_text(json.dumps(config | change) if change else "[")
    with pytest.raises(ProblemError) as wrong:
        build(Request("train", model=str(tmp_path / "a")))
    assert code in [problem.code for problem in wrong.value.problems]


def test_an_adapter_of_another_base_is_a_problem_before_weights_are_read(
    world: SimpleNamespace, tmp_path: Path
) -> None:
    weights = load_file(world.adapter / "adapter_model.safetensors")
    name = next(name for name in weights if "layers.0.self_attn.q_proj.lora_B" in name)
    shutil.copytree(world.adapter, tmp_path / "a")
    for broken in ({**weights, name: weights[name][:-1].contiguous()}, {k: v for k, v in weights.items() if k != name}):
        save_file(broken, tmp_path / "a/adapter_model.safetensors")
        spec = continuing(world, tmp_path, tmp_path / "a")
        codes = {problem.code for problem in preflight(spec, "local", group="model").problems}
        assert "MODEL_ADAPTER_MISMATCH" in codes
        with pytest.raises(ProblemError) as wrong:
            train_here(spec, tmp_path / "run")
        assert {problem.code for problem in wrong.value.problems} == {"MODEL_ADAPTER_MISMATCH"}


def test_an_adapter_of_this_program_names_its_base_by_its_weights(world: SimpleNamespace, tmp_path: Path) -> None:
    shutil.copytree(world.model, tmp_path / "other")
    weights = load_file(tmp_path / "other/model.safetensors")
    save_file({name: value + 1e-3 for name, value in weights.items()}, tmp_path / "other/model.safetensors")
    changes = {"policy.model_name_or_path": str(tmp_path / "other")}
    spec = continuing(world, tmp_path, world.run / "best", **changes)
    assert "MODEL_ADAPTER_MISMATCH" in {problem.code for problem in preflight(spec, "local", group="model").problems}
