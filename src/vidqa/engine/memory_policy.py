"""The memory policy of a run: the fastest that its GPUs allow, by the estimate that preflight prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vidqa.engine.distributed import World
from vidqa.engine.prepare import on_main
from vidqa.engine.schedule import Schedule
from vidqa.families import family_of
from vidqa.planning.budget.forecast import forecast, heaviest_micro_steps
from vidqa.planning.budget.memory import GIB, MemoryPolicy, allowed_policies, model_of
from vidqa.planning.budget.trained import parameters


def choose_memory_policy(spec: Any, folder: Path, schedule: Schedule, world: World) -> MemoryPolicy:
    """What the spec says, and of what it leaves open the fastest that fits the smallest GPU of the run. A CPU's memory
    is not estimated: it gets what takes least."""
    allowed = allowed_policies(spec)
    if len(allowed) == 1 or world.device.type != "cuda":
        return allowed[-1]
    memory_gib = min(world.gather(torch.cuda.get_device_properties(world.device).total_memory)) / GIB

    def fastest() -> MemoryPolicy:
        family = family_of(folder)
        sizes = family.sizes_of(folder)
        model = model_of(sizes, parameters(family.tensors(sizes), spec.policy))
        return forecast(spec, model, heaviest_micro_steps(schedule.steps, schedule.total), memory_gib).policy

    return on_main(world, fastest)
