"""The first update of a recorded GRPO step on these ranks: torchrun ... rl_ranks.py SPEC RUN OUT

The completions that one rank recorded are dealt to all ranks, unevenly. OUT gets loss, gradient norm, and Adam's first
moments, which are a share of the gradient.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from vidqa.core.run_folder import RunFolder, read_rollouts, rollout_file
from vidqa.engine.rl.replay import replay_rewards
from vidqa.engine.rl.train import open_training
from vidqa.engine.training.checkpoint import training_state
from vidqa.spec import load


def first_update(spec: Path, run: Path, scratch: Path) -> tuple[float, float, torch.Tensor]:
    """Loss, gradient norm and all first moments, float64 [P], after step 1 of a run on one rank."""
    with open_training(load(spec, "grpo"), RunFolder(scratch)) as training:
        lines = [line for line in read_rollouts(rollout_file(run, 0)) if line["step"] == 1]
        slots = sorted({line["slot"] for line in lines})
        last = training.world.rank == training.world.size - 1
        mine = slots[training.world.size - 1 :] if last else [slots[training.world.rank]]
        groups, faults = replay_rewards(training, [line for line in lines if line["slot"] in mine])
        assert not faults, faults
        values = training.learn(0, groups)
        state = training_state(training.model, training.learner.optimizer)
        moments = [whole(state[name]) for name in sorted(state) if name.endswith(".exp_avg")]
        return values["train/loss"], values["train/grad_norm"], torch.cat(moments)


def whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.flatten().double()


if __name__ == "__main__":
    spec, run, out = map(Path, sys.argv[1:])
    found = first_update(spec, run, out.with_suffix(".run"))
    if torch.distributed.get_rank() == 0:
        torch.save(found, out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
