"""AdamW with decay groups, the learning rate of every step, and clipping.

Both work on this rank's rows as plain tensors: DTensor would look at each of some hundred parameters for every
operation, while the GPU waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from vidqa.engine.checkpoint.state import MOMENTS
from vidqa.engine.distributed import local_part
from vidqa.engine.torch_private import foreach_mul_
from vidqa.engine.training.adamw8bit import CODES, few_bits_state, update


class _Local:
    """Mixed into an optimizer of PyTorch: its lists of parameters, gradients and moments become local."""

    def _init_group(self, group: dict[str, Any], *lists: list[torch.Tensor]) -> Any:
        flags = super()._init_group(group, *lists)  # type: ignore[misc]
        for tensors in lists:
            tensors[:] = map(local_part, tensors)
        return flags


class LocalAdamW(_Local, torch.optim.AdamW):
    pass


class LocalAdamW8bit(LocalAdamW):
    def step(self, closure: Any = None) -> Any:
        """Parameters with 8-bit moments first; the others as AdamW does."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if CODES[0] in self.state[parameter] and parameter.grad is not None:
                    update(parameter, self.state[parameter], group)
                    parameter.grad = None
        return super().step(closure)


class LocalAdam(_Local, torch.optim.Adam):
    pass


def build_optimizer(model: nn.Module, train: Any) -> torch.optim.Optimizer:
    """`train` is the spec's table. Matrices decay; biases, norms and other vectors do not."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for _, p in trained if p.ndim >= 2], "weight_decay": train.optm_weight_decay},
        {"params": [p for _, p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    kind = {"AdamW": LocalAdamW, "Adam": LocalAdam, "AdamW8bit": LocalAdamW8bit}[train.optm_name]
    implementation = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}
    optimizer = kind(
        [group for group in groups if group["params"]],
        lr=train.optm_lr,
        betas=tuple(train.optm_betas),
        eps=train.epsilon,
        **implementation[train.optm_impl],
    )
    _take_state(optimizer)
    return optimizer


def _take_state(optimizer: torch.optim.Optimizer) -> None:
    """Adam's state before its first step, as PyTorch makes it within that step. There it would come to lie between
    gradients, and leave a GPU's memory in pieces for the rest of the run."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            few_bits = few_bits_state(parameter) if isinstance(optimizer, LocalAdamW8bit) else None
            # bitsandbytes takes the number of steps as one of Python's, which is not waited for on the host alone.
            steps = torch.zeros((), device=parameter.device if group["fused"] and not few_bits else "cpu")
            moments = few_bits or {moment: torch.zeros_like(parameter) for moment in MOMENTS}
            optimizer.state[parameter] = {"step": steps, **moments}


def trained_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def learning_rate(step: int, total: int, warmup: int, train: Any) -> float:
    """The learning rate of optimizer step s = `step` (from 0) of T = `total`, the first w = `warmup` of which rise.

    While s < w it is lr * (start + (1 - start) * (s + 1) / w), so that the first step already learns. Then it stays at
    lr, and over the last d steps it falls: lr * (floor + (1 - floor) * decay(p)) with p = (s - (T - d)) / d, where
    d = T - w, or min(round(T * optm_decay_ratio), T - w) where a ratio is given: the fall never begins within the
    warm-up. cosmos-rl takes the same steps, except in the warm-up, whose first step learns nothing there.
    """
    if step < warmup:
        start = train.optm_warmup_start_factor
        return train.optm_lr * (start + (1 - start) * (step + 1) / warmup)
    decay_steps = total if train.optm_decay_ratio is None else round(total * train.optm_decay_ratio)
    decay = min(decay_steps, total - warmup)
    progress = min(max(step - (total - decay), 0) / max(decay, 1), 1.0)
    floor = train.optm_min_lr_factor
    return train.optm_lr * (floor + (1 - floor) * _decay(train.optm_decay_type, progress))


def _decay(kind: str | None, progress: float) -> float:
    """From 1 at progress 0 to 0 at progress 1."""
    if kind == "linear":
        return 1 - progress
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if kind == "sqrt":
        return 1 - math.sqrt(progress)
    return 1.0  # none


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], limit: float, scale: torch.Tensor) -> torch.Tensor:
    """Multiply all gradients by `scale`, then clip their global norm to `limit` (0: no clipping), in one pass and
    without waiting for the device. All are sharded over the same ranks, or none is; they may be in host memory. Returns
    the norm before clipping: float32 scalar on the device of `scale`, the same on every rank."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    rows = [local_part(gradient) for gradient in gradients]
    squares = torch.nn.utils.get_total_norm(rows).float().square().to(scale.device)
    if isinstance(sharded := gradients[0], DTensor):
        for dim, placement in enumerate(sharded.placements):
            if placement.is_shard():
                dist.all_reduce(squares, group=sharded.device_mesh.get_group(dim))
    norm = squares.sqrt() * scale
    factor = scale * (limit / (norm + 1e-6)).clamp(max=1.0) if limit > 0 else scale
    foreach_mul_(rows, factor.to(rows[0].device))
    return norm
