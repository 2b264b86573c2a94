"""AdamW whose two moments have 8 bits, by bitsandbytes: a code for each number, and a scale for each 256 of a row.

Only matrices whose rows are multiples of 256 numbers have such moments. Their codes and scales are then rows of the
matrix, too, however its rows are spread over ranks, so that a checkpoint holds them as they are and is read on any
number of ranks. Other parameters (vectors, and matrices of odd widths) keep float32.

Shape letters: R rows, C numbers of a row.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from vidqa.core._optional import require
from vidqa.engine.distributed import local_part
from vidqa.engine.model.quantized_base import EXTRA
from vidqa.planning.budget.params import BLOCK, has_8bit_moments

CODES = ("exp_avg_codes", "exp_avg_sq_codes")
SCALES = ("exp_avg_scale", "exp_avg_sq_scale")


def few_bits_state(parameter: torch.Tensor) -> dict[str, torch.Tensor] | None:
    """The moments of a parameter before its first step: uint8 [R, C] and float32 [R, C / 256], sharded as it is; None
    where it keeps float32."""
    if not has_8bit_moments(parameter.shape):
        return None
    codes = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in CODES}
    return codes | {name: _scales(parameter) for name in SCALES}


def _scales(parameter: torch.Tensor) -> torch.Tensor:
    blocks = math.prod(parameter.shape[1:]) // BLOCK
    local = local_part(parameter)
    scales = torch.zeros((local.shape[0], blocks), device=local.device)
    if not isinstance(parameter, DTensor):
        return scales
    shape = torch.Size((parameter.shape[0], blocks))
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(scales, mesh, placements, run_check=False, shape=shape, stride=(blocks, 1))


@torch.no_grad()
def update(parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """One step of a parameter with 8-bit moments, in place; `parameter.grad` is float32."""
    state["step"] += 1
    values, gradient = local_part(parameter), local_part(parameter.grad)  # type: ignore[arg-type]
    if not values.numel():
        return
    first, second = (local_part(state[name]) for name in CODES)
    first_scale, second_scale = (local_part(state[name]).view(-1) for name in SCALES)
    signed, unsigned = _maps(values.device)
    require("bitsandbytes.functional", EXTRA).optimizer_update_8bit_blockwise(
        "adam",
        gradient,
        values,
        first,
        second,
        *group["betas"],
        0.0,
        0.0,
        group["eps"],
        int(state["step"]),
        group["lr"],
        signed,
        unsigned,
        first_scale,
        second_scale,
        weight_decay=group["weight_decay"],
    )


@cache
def _maps(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers that codes stand for: of the first moment, and of the second, which has no sign."""
    functional = require("bitsandbytes.functional", EXTRA)
    return functional.create_dynamic_map(signed=True).to(device), functional.create_dynamic_map(signed=False).to(device)
