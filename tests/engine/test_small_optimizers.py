"""AdamW8bit against bitsandbytes' own, and training with weights in host memory: on one and several ranks, resumed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bitsandbytes
import pytest
import torch
from in_process import train_here
from safetensors.torch import load_file
from test_optimizer import train
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec
from torch import nn

from vidqa.core.problem import ProblemError
from vidqa.engine.training.optimizer import build_optimizer, clip_gradients, set_learning_rate

OPTIONS = {"train.max_num_steps": 4, "train.optm_lr": 1e-3, "train.ckpt.save_freq": 2, "engine.pack_tokens": 200}
EIGHT = {"train.optm_name": "AdamW8bit"}
OFFLOAD = {"train.fsdp_offload": True}
SHARDED = {"policy.parallelism.dp_shard_size": 2, "train.train_batch_per_replica": 2}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.odd = nn.Linear(512, 32), nn.Linear(100, 32)


def test_updates_are_those_of_bitsandbytes() -> None:
    ours, theirs = Layers(), Layers()
    optimizer = build_optimizer(ours, train(optm_name="AdamW8bit", optm_lr=0.01))
    rows = [
        {"params": [theirs.wide.weight, theirs.odd.weight], "weight_decay": 0.1},
        {"params": [theirs.wide.bias, theirs.odd.bias], "weight_decay": 0.0},
    ]
    stock = bitsandbytes.optim.AdamW8bit(rows, lr=0.01, betas=(0.9, 0.95), eps=1e-7)
    for step in range(5):
        for model, updater in ((ours, optimizer), (theirs, stock)):
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            updater.step()
            updater.zero_grad()
    torch.testing.assert_close(ours.wide.weight, theirs.wide.weight, rtol=0, atol=1e-6)
    for name in ("odd.weight", "odd.bias", "wide.bias"):  # of fewer than 4,096 numbers, or of odd rows: float32
        torch.testing.assert_close(ours.get_parameter(name), theirs.get_parameter(name), rtol=1e-4, atol=1e-5)


def test_moments_take_two_bytes_where_rows_allow_it() -> None:
    model = Layers()
    optimizer = build_optimizer(model, train(optm_name="AdamW8bit"))

    def held(parameter: nn.Parameter) -> int:
        return sum(tensor.nbytes for name, tensor in optimizer.state[parameter].items() if name != "step")

    assert held(model.wide.weight) == 32 * 512 * 2 + 32 * 512 // 256 * 8
    assert held(model.odd.weight) == 32 * 100 * 8


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("optimizers")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder, hidden=256), root=tiny_data(folder, clips=3))
    place.plain = _run(place, "plain", {})
    return place


def _run(world: SimpleNamespace, name: str, over: dict[str, Any], ranks: int = 1) -> Path:
    folder = world.folder / name
    folder.mkdir()
    spec = tiny_spec(folder, world.model, world.root, OPTIONS | over)
    if ranks == 1:
        return train_here(spec, folder / "run")
    run_engine("train", spec, folder / "run", ranks=ranks)
    return folder / "run"


def test_offloaded_weights_give_the_same_training(world: SimpleNamespace) -> None:
    run = _run(world, "offload", OFFLOAD)
    assert losses(run) == pytest.approx(losses(world.plain), rel=1e-5)
    assert json.loads((run / "run.json").read_text())["export_proof"]["proved"]
    ours, theirs = (load_file(path / "best/model.safetensors") for path in (run, world.plain))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)


def test_a_checkpoint_of_two_offloaded_ranks_goes_on_with_one(world: SimpleNamespace) -> None:
    begun = _run(world, "offload-2", OFFLOAD | SHARDED, ranks=2)
    assert losses(begun) == pytest.approx(losses(world.plain), rel=1e-4)
    later = _run(world, "offload-1", OFFLOAD | {"train.resume": str(begun / "checkpoints/step_2")})
    assert losses(later) == pytest.approx(losses(world.plain)[2:], rel=1e-4)


def test_a_checkpoint_of_two_8bit_ranks_goes_on_with_one(world: SimpleNamespace) -> None:
    whole = _run(world, "eight", EIGHT)
    begun = _run(world, "eight-2", EIGHT | SHARDED, ranks=2)
    assert losses(begun) == pytest.approx(losses(whole), rel=1e-4)
    later = _run(world, "eight-1", EIGHT | {"train.resume": str(begun / "checkpoints/step_2")})
    assert losses(later) == pytest.approx(losses(whole)[2:], rel=1e-4)
    assert losses(whole) != pytest.approx(losses(world.plain), rel=1e-7)


def test_moments_of_another_precision_are_refused(world: SimpleNamespace) -> None:
    with pytest.raises(ProblemError) as refused:
        _run(world, "refused", EIGHT | {"train.resume": str(world.plain / "checkpoints/step_2")})
    assert refused.value.problems[0].code == "ENGINE_RESUME_MISMATCH"


def test_adapters_in_host_memory_on_a_base_of_few_bits(world: SimpleNamespace) -> None:
    over = {"policy.lora.r": 4, "policy.quantization": "nf4", "policy.lora.lora_dropout": 0.0, "train.optm_lr": 2e-3}
    here, there = (_run(world, name, over | more) for name, more in (("q", {}), ("q-offload", OFFLOAD)))
    assert losses(there) == pytest.approx(losses(here), rel=1e-5)


def test_clipping_of_gradients_in_host_memory_has_the_same_norm() -> None:
    model = Layers()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    norm = clip_gradients(list(model.parameters()), 1.0, torch.tensor(0.5))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert norm.item() == pytest.approx(0.5 * count**0.5)
    assert set_learning_rate(build_optimizer(model, train()), 0.1) is None
