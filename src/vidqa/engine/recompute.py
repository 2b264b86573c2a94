"""What is computed again in backward: as little as the GPU's memory allows, by the estimate that preflight prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from vidqa.budget.forecast import allowed_recompute, forecast, loads
from vidqa.budget.memory import GIB, model_of
from vidqa.budget.trained import parameters
from vidqa.engine.distributed import World
from vidqa.engine.model.qwen3_vl import Recompute
from vidqa.engine.prepare import on_main
from vidqa.engine.schedule import Schedule
from vidqa.families import family_of


def choose_recompute(spec: Any, folder: Path, schedule: Schedule, world: World) -> Recompute:
    """ "none", "vision" or "all": what the spec says, or for "auto" the fastest that fits the smallest GPU of the run.
    A CPU's memory is not estimated: it recomputes all."""
    allowed = allowed_recompute(spec)
    if len(allowed) == 1 or world.device.type != "cuda":
        return cast(Recompute, allowed[-1])
    memory_gib = min(world.gather(torch.cuda.get_device_properties(world.device).total_memory)) / GIB

    def fastest() -> str:
        family = family_of(folder)
        sizes = family.sizes_of(folder)
        model = model_of(sizes, parameters(family.tensors(sizes), spec.policy))
        return forecast(spec, model, loads(schedule.steps, schedule.total), memory_gib).recompute

    return cast(Recompute, on_main(world, fastest))
