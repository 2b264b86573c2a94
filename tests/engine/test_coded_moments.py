"""AdamW8bit: moments of 8 bits are those of bitsandbytes, and a checkpoint of them fits any number of ranks."""

from __future__ import annotations

from typing import Any

import bitsandbytes
import pytest
import torch
from in_process import runs_on_ranks
from test_optimizer import train
from tiny_world import losses
from torch import nn
from torch.distributed.checkpoint import FileSystemReader

from vidqa.engine.training.optimizer import build_optimizer
from vidqa.planning.budget.params import has_8bit_moments


def layers(dtype: torch.dtype) -> nn.Sequential:
    """Rows of one block, of two, of no whole number of them, and vectors."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 32), nn.Linear(32, 16)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_are_those_of_bitsandbytes(dtype: torch.dtype) -> None:
    ours, theirs = layers(dtype), layers(dtype)
    optimizer = build_optimizer(ours, train(optm_name="AdamW8bit", optm_lr=0.01, optm_impl="for-loop"))
    wide = [p for p in theirs.parameters() if has_8bit_moments(p.shape)]
    narrow = [p for p in theirs.parameters() if not has_8bit_moments(p.shape)]
    assert (len(wide), len(narrow)) == (2, 4)
    settings: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-7}
    coded = bitsandbytes.optim.AdamW8bit(wide, **settings, weight_decay=0.1)
    groups = [{"params": [p], "weight_decay": 0.1 if p.ndim > 1 else 0.0} for p in narrow]
    plain = torch.optim.AdamW(groups, **settings)
    for number in range(5):
        data = torch.randn(8, 256, generator=torch.Generator().manual_seed(number)).to(dtype)
        for model, steppers in ((ours, [optimizer]), (theirs, [coded, plain])):
            model.zero_grad()
            model(data).float().square().sum().backward()
            for stepper in steppers:
                stepper.step()
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    state = optimizer.state[ours[0].weight]
    assert state["exp_avg"].dtype == torch.uint8 and state["exp_avg_scale"].shape == (512, 1)
    assert torch.equal(state["exp_avg"].flatten(), coded.state[wide[0]]["state1"].flatten())


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    steps = {"train.epoch": 4, "train.max_num_steps": 6, "train.ckpt.save_freq": 3, "train.ckpt.max_keep": 5}
    return runs_on_ranks(tmp_path_factory.mktemp("coded"), **{"train.optm_name": "AdamW8bit", **steps})


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_another_number_of_ranks(run_of: Any) -> None:
    one = run_of("one", 1)
    stored = FileSystemReader(one / "checkpoints/step_3/policy").read_metadata().state_dict_metadata
    patches = "model.visual.patch_embed.proj.weight"
    assert stored[f"{patches}.exp_avg"].properties.dtype == torch.uint8  # type: ignore[union-attr]
    assert tuple(stored[f"{patches}.exp_avg_scale"].size) == (64, 6)  # type: ignore[union-attr]
    assert not [name for name in stored if name.endswith("q_proj.weight.exp_avg_scale")]  # rows of 64
    resume = {"train.resume": str(one / "checkpoints/step_3")}
    for name, ranks in (("again", 1), ("two", 2)):
        resumed = losses(run_of(name, ranks, **resume))
        assert resumed == pytest.approx(losses(one)[3:], rel=1e-6 if ranks == 1 else 1e-3)


def test_it_learns_as_with_moments_of_32_bits(run_of: Any) -> None:
    coded, plain = (losses(run_of(name, 1, **{"train.optm_name": name})) for name in ("AdamW8bit", "AdamW"))
    assert coded[0] == plain[0] and coded[-1] < coded[0]
    assert coded[-1] == pytest.approx(plain[-1], rel=0.02)
