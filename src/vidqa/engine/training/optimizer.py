"""AdamW with decay groups, the learning rate of every step, and clipping.

AdamW and clipping use this rank's rows as plain tensors: DTensor inspects each of some hundred parameters in every
operation, while the GPU waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from vidqa.core._optional import require
from vidqa.core.problem import raise_errors
from vidqa.engine.distributed import local_part
from vidqa.engine.torch_private import dtensor_like, foreach_mul_
from vidqa.engine.training.checkpoint import MOMENTS, SCALES
from vidqa.planning.budget.params import BLOCK, has_8bit_moments
from vidqa.spec.schedule import PARTS, part_of, part_problems, rate_of

PART = 16 * 1024**2  # elements of a parameter in host memory that are updated at a time


class LocalAdam(torch.optim.Adam):
    """Adam, and AdamW with `decoupled_weight_decay`, over this rank's rows of parameters, gradients and moments."""

    def _init_group(self, group: dict[str, Any], *lists: list[torch.Tensor]) -> Any:
        flags = super()._init_group(group, *lists)
        for tensors in lists:
            tensors[:] = map(local_part, tensors)
        return flags


class LocalAdamW8bit(LocalAdam):
    """AdamW whose moments are 8-bit codes with one float32 scale per BLOCK elements, in groups with `coded` set; other
    groups have AdamW's moments. The kernels are those of bitsandbytes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ENV_PACKAGE_MISSING."""
        super().__init__(*args, **kwargs)
        functional = require("bitsandbytes", "bitsandbytes").functional
        self._codes = [functional.create_dynamic_map(signed=signed) for signed in (True, False)]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"] if group["coded"] else ():
                if parameter.grad is not None and local_part(parameter).numel():
                    self._update(parameter, group)
        return super().step(closure)

    def _init_group(self, group: dict[str, Any], *lists: list[torch.Tensor]) -> Any:
        """Collect the tensors of a group for Adam; a coded group has been updated already and is skipped."""
        return False if group["coded"] else super()._init_group(group, *lists)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state, device = self.state[parameter], _device_of(parameter)
        state["step"] += 1
        step, written = int(state["step"]), (parameter, *(state[name] for name in (*MOMENTS, *SCALES)))
        tensors = [local_part(tensor).flatten() for tensor in (parameter.grad, *written)]  # views of `written`
        self._codes = [codes.to(device) for codes in self._codes]
        if tensors[0].device == device:
            self._update_flat(tensors, step, group)
            return
        # The GPU updates parameters in host memory part by part: a host takes ten times as long, and needs memory for
        # all moments in float32. The kernel of bitsandbytes runs only on the default stream.
        numbers = (1, 1, 1, 1, BLOCK, BLOCK)  # parameter elements per element of each tensor
        for begin in range(0, len(tensors[0]), PART):
            ranges = [slice(begin // count, (begin + PART) // count) for count in numbers]
            rows = [tensor[where] for tensor, where in zip(tensors, ranges, strict=True)]
            moved = [part.to(device, non_blocking=True) for part in rows]
            self._update_flat(moved, step, group)
            for part, updated in zip(rows[1:], moved[1:], strict=True):
                part.copy_(updated, non_blocking=True)
        torch.cuda.current_stream().synchronize()  # the host reads the results

    def _update_flat(self, tensors: Sequence[torch.Tensor], step: int, group: dict[str, Any]) -> None:
        """Update in place; `tensors` are a gradient, its parameter, two moments and their scales, flattened."""
        gradient, row, *moments_and_scales = tensors
        update, (beta1, beta2) = torch.ops.bitsandbytes.optimizer_update_8bit_blockwise, group["betas"]
        settings = (beta1, beta2, 0.0, 0.0, group["eps"], step, group["lr"])  # 0: settings of other optimizers
        moments, scales = moments_and_scales[:2], moments_and_scales[2:]
        update("adam", gradient, row, *moments, *settings, *self._codes, *scales, group["weight_decay"], 1.0)


def _device_of(parameter: torch.Tensor) -> torch.device:
    """The GPU that computes with a parameter in host memory, else the parameter's own device."""
    on_gpu = isinstance(parameter, DTensor) and parameter.device_mesh.device_type == "cuda"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else parameter.device


def build_optimizer(model: nn.Module, train: Any) -> torch.optim.Optimizer:
    """Build the optimizer; `train` is the spec's table. Matrices decay; biases, norms and other vectors do not. Raises
    SPEC_CONFLICT, SPEC_VALUE for rates of parts that do not train, or the reverse, and ENV_PACKAGE_MISSING for
    AdamW8bit without bitsandbytes."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    raise_errors(part_problems(train.optm_lr, (name for name, _ in trained)))
    groups = [group for part in _parts(train.optm_lr) for group in _groups(trained, part, train)]
    kind = LocalAdamW8bit if train.optm_name == "AdamW8bit" else LocalAdam
    implementation = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}
    optimizer = kind(
        groups,
        lr=groups[0]["lr"],
        betas=tuple(train.optm_betas),
        eps=train.epsilon,
        decoupled_weight_decay=train.optm_name != "Adam",
        **implementation[train.optm_impl],
    )
    _take_state(optimizer)
    return optimizer


def _parts(rates: Any) -> tuple[str, ...]:
    """The parts with parameter groups of their own; "" is the whole model."""
    return ("",) if isinstance(rates, int | float) else PARTS


def _groups(trained: Sequence[tuple[str, nn.Parameter]], part: str, train: Any) -> list[dict[str, Any]]:
    """The parameter groups of a part at its peak rate, split by weight decay and by 8-bit moments."""
    peak = rate_of(train.optm_lr, part) or 0.0
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in trained:
        if not part or part_of(name) == part:
            is_coded = train.optm_name == "AdamW8bit" and has_8bit_moments(parameter.shape)
            groups[parameter.ndim >= 2, is_coded].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": train.optm_weight_decay if decays else 0.0,
            "coded": is_coded,
            "lr": peak,
            "peak": peak,
        }
        for (decays, is_coded), parameters in sorted(groups.items(), reverse=True, key=lambda item: item[0])
    ]


def _take_state(optimizer: torch.optim.Optimizer) -> None:
    """Allocate Adam's state before its first step, with PyTorch's initial values. Allocated during that step
    it would lie between gradients, and fragment a GPU's memory for the rest of the run."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            steps = torch.zeros((), device=parameter.device if group["fused"] and not group["coded"] else "cpu")
            dtype = torch.uint8 if group["coded"] else parameter.dtype
            state = {moment: torch.zeros_like(parameter, dtype=dtype) for moment in MOMENTS}
            state |= {name: _scales(parameter) for name in SCALES} if group["coded"] else {}
            if group["coded"] and _device_of(parameter).type != parameter.device.type:  # copied to the GPU and back
                state = {name: _pinned(rows) for name, rows in state.items()}
            optimizer.state[parameter] = {"step": steps, **state}


def _pinned(rows: Any) -> torch.Tensor:
    """A copy of a DTensor in pinned host memory, which a GPU copies asynchronously."""
    return dtensor_like(rows, local_part(rows).pin_memory())


def _scales(parameter: torch.Tensor) -> torch.Tensor:
    """A float32 zero for each block of a parameter's rows, [rows, blocks], sharded like the parameter and on its
    device; under offload that is the host, although its mesh has GPUs."""
    blocks = math.prod(parameter.shape[1:]) // BLOCK
    return torch.zeros_like(parameter.detach().flatten(1)[:, :blocks], dtype=torch.float32)


def trained_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def learning_rate(step: int, total: int, warmup: int, train: Any, peak: float | None = None) -> float:
    """The learning rate of optimizer step s = `step` (from 0) of T = `total`, with w = `warmup` warm-up steps. lr
    is `peak`, or train.optm_lr if `peak` is None.

    If s < w it is lr * (start + (1 - start) * (s + 1) / w), so that the first step already learns. Then it stays at
    lr, and over the last d steps it decays: lr * (floor + (1 - floor) * decay(p)) with p = (s - (T - d)) / d, where
    d = T - w, or min(round(T * optm_decay_ratio), T - w) if a ratio is set: the decay never begins within the
    warm-up. cosmos-rl has the same schedule, except in the warm-up, in which its first step learns nothing.
    """
    peak = train.optm_lr if peak is None else peak
    if step < warmup:
        start = train.optm_warmup_start_factor
        return peak * (start + (1 - start) * (step + 1) / warmup)
    decay_steps = total if train.optm_decay_ratio is None else round(total * train.optm_decay_ratio)
    decay = min(decay_steps, total - warmup)
    progress = min(max(step - (total - decay), 0) / max(decay, 1), 1.0)
    floor = train.optm_min_lr_factor
    return peak * (floor + (1 - floor) * _decay(train.optm_decay_type, progress))


def _decay(kind: str | None, progress: float) -> float:
    """The decay factor: 1 at progress 0, falling to 0 at progress 1; constant 1 for the type "none"."""
    if kind == "linear":
        return 1 - progress
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if kind == "sqrt":
        return 1 - math.sqrt(progress)
    return 1.0  # none


def set_learning_rates(optimizer: torch.optim.Optimizer, step: int, total: int, warmup: int, train: Any) -> float:
    """Set the learning rates of a step; returns the decoder's, or the first group's if the decoder does not train."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, total, warmup, train, group["peak"])
    return optimizer.param_groups[0]["lr"]


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], limit: float, scale: torch.Tensor) -> torch.Tensor:
    """Multiply all gradients by `scale`, then clip their global norm to `limit` (0: no clipping), in one pass and
    without waiting for the device. All are sharded over the same ranks, or none is. Returns the norm before clipping:
    float32 scalar, the same on every rank."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    rows = [local_part(gradient) for gradient in gradients]
    squares = torch.nn.utils.get_total_norm(rows).float().square().to(scale.device)  # offloaded: on the host
    if isinstance(sharded := gradients[0], DTensor):
        for dim, placement in enumerate(sharded.placements):
            if placement.is_shard():
                dist.all_reduce(squares, group=sharded.device_mesh.get_group(dim))
    norm = squares.sqrt() * scale
    factor = scale * (limit / (norm + 1e-6)).clamp(max=1.0) if limit > 0 else scale
    foreach_mul_(rows, factor.to(rows[0].device))
    return norm
