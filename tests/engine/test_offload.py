"""train.fsdp_offload: what trains lies on the host, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from in_process import runs_on_ranks
from safetensors.torch import load_file
from tiny_world import losses


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    steps = {"train.epoch": 4, "train.max_num_steps": 4, "train.ckpt.save_freq": 2, "train.ckpt.max_keep": 5}
    return runs_on_ranks(tmp_path_factory.mktemp("offload"), **steps)


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_offloaded_training_is_the_same(run_of: Any, lora: bool) -> None:
    adapters = {"policy.lora": {}, "policy.lora.lora_dropout": 0.0} if lora else {}
    plain = run_of(f"plain_{lora}", 1, **adapters)
    for name, ranks in ((f"one_{lora}", 1), (f"two_{lora}", 2)):
        offloaded = run_of(name, ranks, **adapters, **{"train.fsdp_offload": True})
        assert losses(offloaded) == pytest.approx(losses(plain), rel=1e-5)
        (file,) = (plain / "safetensors/step_4").glob("*model.safetensors")
        ours, theirs = load_file(offloaded / "safetensors/step_4" / file.name), load_file(file)
        for key, tensor in theirs.items():
            torch.testing.assert_close(ours[key], tensor, rtol=0, atol=1e-5)
    resume = {"train.resume": str(plain / "checkpoints/step_2"), "train.fsdp_offload": True}
    resumed = run_of(f"resumed_{lora}", 1, **adapters, **resume)
    assert losses(resumed) == pytest.approx(losses(plain)[2:], rel=1e-5)
