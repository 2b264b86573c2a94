"""Bases in few bits: against stock PEFT on bitsandbytes' Linear4bit, on one and several ranks, exported and merged."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bitsandbytes
import forked
import pytest
import torch
from in_process import train_here
from peft import PeftModel
from safetensors.torch import load_file
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec
from transformers import BitsAndBytesConfig, Qwen3VLForConditionalGeneration

from vidqa.core.problem import ProblemError
from vidqa.engine.actions.export import proof_sample
from vidqa.engine.export.proof import stock_loss
from vidqa.engine.model.layers import Adapter, Projection, project
from vidqa.engine.model.quantized_base import QuantizedLinear, dense, quantized
from vidqa.planning.adapters import base_precision, check_base_precision
from vidqa.planning.samples import training_planner
from vidqa.spec import load

OPTIONS = {
    "policy.lora.r": 4,
    "policy.lora.lora_dropout": 0.0,
    "policy.quantization": "nf4",
    "train.optm_lr": 2e-3,
    "train.train_batch_per_replica": 4,
    "train.max_num_steps": 3,
    "validation.enable": True,
    "train.train_policy.dataset.test_size": 0.1,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("quantized")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder, clips=4))
    place.run = _trained(tiny_spec(folder, place.model, place.root, OPTIONS), folder / "run")
    return place


def _trained(spec: Path, run: Path) -> Path:
    """A run with its spec, as a launch leaves it."""
    train_here(spec, run)
    shutil.copy(spec, run / "spec.toml")
    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nf4_has_the_values_of_bitsandbytes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 128).to(dtype)
    stock = bitsandbytes.functional
    codes, state = stock.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    expected = stock.dequantize_4bit(codes, state)
    assert torch.equal(dense(quantized(weight, "nf4"), weight), expected)


def test_fp8_is_within_a_sixteenth_of_every_number() -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 128)
    values = dense(quantized(weight, "fp8"), weight)
    large = weight.abs() > weight.abs().amax(1, keepdim=True) / 64
    assert ((values - weight).abs() / weight.abs())[large].max() <= 1 / 16


@pytest.mark.parametrize("plainly", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("precision", ["nf4", "fp8"])
def test_a_product_and_its_gradients_are_those_of_the_dequantized_weight(
    precision: str, dropout: float, plainly: bool
) -> None:
    torch.manual_seed(0)
    weights, parts = [torch.randn(32, 64) for _ in range(2)], []
    parts = [quantized(weight, precision) for weight in weights]
    adapter = Adapter(torch.randn(4, 64, requires_grad=True), torch.randn(32, 4, requires_grad=True), 0.5, dropout)

    def outcome(chosen: list[Any]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        hidden = torch.randn(7, 64, requires_grad=True)
        layers = [Projection(chosen[0], None, adapter), Projection(chosen[1], torch.ones(32), None)]
        outputs = project(hidden, *layers, plainly=plainly)
        loss = sum(output.sin().sum() for output in outputs)
        return [*outputs, *torch.autograd.grad(loss, (hidden, adapter.down, adapter.up))]

    expected = outcome([dense(part, weight) for part, weight in zip(parts, weights, strict=True)])
    for ours, theirs in zip(outcome(list(parts)), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("precision", ["nf4", "fp8"])
def test_a_weight_may_be_read_between_forward_and_backward(precision: str) -> None:
    """Of the warm-up, whose values count for nothing."""
    layer = QuantizedLinear(torch.nn.Linear(64, 32), precision).to_empty(device="cpu")
    weight, hidden = torch.randn(32, 64), torch.randn(7, 64, requires_grad=True)
    (output,) = project(hidden, Projection(layer.weight, None, None))
    layer.fill(weight)
    output.sum().backward()
    assert torch.equal(dense(layer.weight, weight), dense(quantized(weight, precision), weight))


def test_backward_keeps_no_dequantized_weight() -> None:
    layer = Projection(quantized(torch.randn(1024, 256), "nf4"), None, None)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        project(torch.randn(3, 256, requires_grad=True), layer)
    assert max(tensor.nbytes for tensor in kept) <= 1024 * 256 / 2


def test_a_run_learns_and_its_export_is_proved(world: SimpleNamespace) -> None:
    assert losses(world.run)[-1] < losses(world.run)[0]
    record = json.loads((world.run / "run.json").read_text())
    assert record["export_proof"]["proved"]
    rows = {row["part"]: row for row in record["trainable"]}
    assert any("(nf4)" in part and row["parameters"] and not row["trainable"] for part, row in rows.items())


def _proof(world: SimpleNamespace, run: Path) -> tuple[Any, ...]:
    spec = load(run / "spec.toml", "train")
    planner = training_planner(spec, world.model)
    facts = json.loads((run / "best/export.json").read_text())
    return facts["trainer_loss"], planner, *proof_sample(spec, planner, facts["proof_sample"])


@pytest.fixture(scope="module")
def rounded_run(world: SimpleNamespace) -> Path:
    over = OPTIONS | {"train.param_dtype": "bfloat16"}
    (world.folder / "bf16").mkdir()
    return _trained(tiny_spec(world.folder / "bf16", world.model, world.root, over), world.folder / "bf16/run")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-3)])
def test_the_loss_is_that_of_stock_peft_on_linear4bit(
    world: SimpleNamespace, rounded_run: Path, dtype: torch.dtype, tolerance: float
) -> None:
    run = world.run if dtype == torch.float32 else rounded_run
    four_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=["model.visual", "lm_head"],
    )
    stock = Qwen3VLForConditionalGeneration.from_pretrained(
        world.model, dtype=dtype, quantization_config=four_bits, device_map="cpu"
    )
    layer = stock.model.language_model.layers[0]
    assert isinstance(layer.mlp.up_proj, bitsandbytes.nn.Linear4bit)
    if dtype == torch.float32:  # without gradients bitsandbytes' kernels for a CPU compute in fewer bits
        stock = stock.dequantize()
        assert type(stock.model.language_model.layers[0].mlp.up_proj) is torch.nn.Linear
    expected, planner, sample, frames = _proof(world, run)
    adapted = PeftModel.from_pretrained(stock, run / "best").base_model.model.eval()
    loss = stock_loss(adapted, planner, sample, frames)
    assert loss == pytest.approx(expected, rel=tolerance)


def test_the_adapter_names_the_precision_of_its_base(world: SimpleNamespace) -> None:
    assert base_precision(world.run / "best") == "nf4"
    check_base_precision(world.run / "best", "nf4")
    with pytest.raises(ProblemError, match="nf4"):
        check_base_precision(world.run / "best", None)


def test_a_merge_proves_the_losses_on_both_bases(world: SimpleNamespace, tmp_path: Path) -> None:
    program = ["vidqa.engine.actions.export", "--run", str(world.run), "--export", str(world.run / "best")]
    done = forked.run(
        [sys.executable, "-m", *program, "--out", str(tmp_path / "merged"), "--merge", "--json"], timeout=180
    )
    assert done.returncode == 0, done.stdout
    result = json.loads(done.stdout)
    proof, folder = result["data"]["proof"], Path(result["data"]["folder"])
    assert proof["quantized_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-4)
    assert proof["reloaded_loss"] == pytest.approx(proof["adapted_loss"], rel=1e-4)
    base, merged = (load_file(path / "model.safetensors") for path in (world.model, folder))
    adapter = load_file(world.run / "best/adapter_model.safetensors")
    name = "model.language_model.layers.0.self_attn.q_proj"
    a, b = (adapter[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    torch.testing.assert_close(merged[f"{name}.weight"], base[f"{name}.weight"] + 32 / 4 * b @ a)


@pytest.mark.parametrize("mesh", [(2, 1), (1, 2)])
def test_two_ranks_give_the_losses_of_one(world: SimpleNamespace, tmp_path: Path, mesh: tuple[int, int]) -> None:
    shard, replicate = mesh
    sizes = {"policy.parallelism.dp_shard_size": shard, "policy.parallelism.dp_replicate_size": replicate}
    over = OPTIONS | sizes | {"train.train_batch_per_replica": 2}
    run_engine("train", tiny_spec(tmp_path, world.model, world.root, over), tmp_path / "run", ranks=2)
    assert losses(tmp_path / "run") == pytest.approx(losses(world.run), rel=1e-5)


def test_fp8_trains_and_is_proved_with_answers_in_validation(world: SimpleNamespace, tmp_path: Path) -> None:
    over = OPTIONS | {"policy.quantization": "fp8", "engine.validation_generate": 2, "engine.validation_max_tokens": 8}
    run = train_here(tiny_spec(tmp_path, world.model, world.root, over), tmp_path / "run")
    assert json.loads((run / "run.json").read_text())["export_proof"]["proved"]
    assert base_precision(run / "best") == "fp8"


def test_a_checkpoint_of_another_base_is_refused(world: SimpleNamespace, tmp_path: Path) -> None:
    over = OPTIONS | {"policy.quantization": None, "train.resume": str(next((world.run / "checkpoints").iterdir()))}
    with pytest.raises(ProblemError, match="base_precision") as refused:
        train_here(tiny_spec(tmp_path, world.model, world.root, over), tmp_path / "run")
    assert refused.value.problems[0].code == "RESUME_MISMATCH"


def test_training_goes_on_from_an_adapter_of_a_base_of_its_precision_alone(
    world: SimpleNamespace, tmp_path: Path
) -> None:
    over = OPTIONS | {"policy.lora.lora_path": str(world.run / "best")}
    run = train_here(tiny_spec(tmp_path, world.model, world.root, over), tmp_path / "run")
    assert losses(run)[0] < losses(world.run)[0]
    other = tiny_spec(tmp_path, world.model, world.root, over | {"policy.quantization": None})
    with pytest.raises(ProblemError, match="nf4"):
        train_here(other, tmp_path / "other")
