"""Bases in few bits, 8-bit moments and offload on CUDA; never runs in CI: pytest -m gpu."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_world import engine_command, losses, tiny_data, tiny_model, tiny_spec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from vidqa.engine.distributed import local_part
from vidqa.engine.model.layers import Adapter, Projection, project
from vidqa.engine.model.quantized_base import dense, quantized
from vidqa.engine.training import optimizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
ADAPT = {"policy.lora.r": 4, "policy.lora.lora_dropout": 0.0, "train.optm_lr": 2e-3}
METHODS: dict[str, dict[str, Any]] = {
    "nf4": ADAPT | {"policy.quantization": "nf4"},
    "fp8": ADAPT | {"policy.quantization": "fp8"},
    "8bit": {"train.optm_name": "AdamW8bit"},
    "offload": {"train.fsdp_offload": True},
    "8bit-offload": {"train.optm_name": "AdamW8bit", "train.fsdp_offload": True},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("small_card")
    return SimpleNamespace(folder=folder, model=tiny_model(folder, hidden=256), root=tiny_data(folder, clips=4))


def _run(world: SimpleNamespace, name: str, over: dict[str, Any]) -> Path:
    folder = world.folder / name
    folder.mkdir()
    spec = tiny_spec(folder, world.model, world.root, {"train.max_num_steps": 3, **over})
    done = subprocess.run(engine_command("train", spec, folder / "run", 1), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return folder / "run"


@pytest.mark.parametrize("method", METHODS)
def test_compiled_and_as_written_learn_the_same(world: SimpleNamespace, method: str) -> None:
    compiled = _run(world, f"{method}-compiled", METHODS[method])
    written = _run(world, f"{method}-written", METHODS[method] | {"train.compile": False})
    assert losses(compiled) == pytest.approx(losses(written), rel=1e-3)
    assert json.loads((compiled / "run.json").read_text())["export_proof"]["proved"]


def test_recomputation_changes_no_loss_of_a_quantized_base(world: SimpleNamespace) -> None:
    nothing, everything = (
        losses(_run(world, f"again-{level}", METHODS["nf4"] | {"engine.recompute": level})) for level in ("none", "all")
    )
    assert everything == pytest.approx(nothing, rel=1e-4)


def test_weights_in_host_memory_are_updated_part_by_part_as_those_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "PART", 256 * 100)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        results = []
        for place in (OffloadPolicy(), CPUOffloadPolicy()):
            torch.manual_seed(0)
            model = torch.nn.Linear(512, 1000, bias=False)
            fully_shard(model, mesh=init_device_mesh("cuda", (1,)), offload_policy=place)
            model.to("cpu" if isinstance(place, CPUOffloadPolicy) else device)
            train = SimpleNamespace(
                **{"optm_lr": 1e-3, "optm_name": "AdamW8bit", "optm_weight_decay": 0.1, "optm_impl": "fused"},
                **{"optm_betas": (0.9, 0.95), "epsilon": 1e-8},
            )
            built = optimizer.build_optimizer(model, train)
            for _ in range(3):
                model(torch.ones(4, 512, device=device)).square().sum().backward()
                built.step()
                built.zero_grad()
            results.append([local_part(tensor).cpu() for tensor in (model.weight, *built.state[model.weight].values())])
        for on_gpu, on_host in zip(*results, strict=True):
            assert torch.equal(on_gpu, on_host)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["nf4", "fp8"])
def test_compiled_products_keep_no_dequantized_weight(precision: str) -> None:
    weight = torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16)
    parts = quantized(weight, precision)
    adapter = Adapter(
        torch.randn(8, 2048, device="cuda", requires_grad=True),
        torch.zeros(4096, 8, device="cuda", requires_grad=True),
        1.0,
        0.0,
    )
    hidden = torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    function = torch.compile(lambda rows: project(rows, Projection(parts, None, adapter))[0], fullgraph=True)
    function(hidden).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    output = function(hidden)
    kept = torch.cuda.memory_allocated() - before - output.nbytes
    assert kept < weight.nbytes / 4
    expected = torch.nn.functional.linear(hidden, dense(parts, hidden.detach()))
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-1)
