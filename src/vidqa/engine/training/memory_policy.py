"""The memory policy of a run: the fastest that its GPUs allow, by the estimate that preflight prints."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from vidqa.engine.data.planned_samples import Prepared
from vidqa.engine.distributed import World
from vidqa.engine.gpu_memory import use_memory
from vidqa.families import family_of
from vidqa.planning.budget.autotune import Packing, answered_samples, best_policy, least_policy
from vidqa.planning.budget.memory import MemoryPolicy, count_params
from vidqa.planning.budget.params import parameters
from vidqa.planning.packing import Steps
from vidqa.spec import total_steps
from vidqa.spec.models import TrainSpec


def choose_memory_policy(spec: TrainSpec, folder: Path, data: Prepared, world: World) -> MemoryPolicy:
    """The policy of the spec; where it leaves a choice, the fastest that fits the smallest GPU of the run. A CPU's
    memory is not estimated: everything is computed again there, in packs of the usual size."""
    steps_of = partial(Steps, spec, data.train, world.data_ranks, world.device.type)
    answered = answered_samples(spec, data.validation)
    return memory_policy_of(spec, folder, world, Packing(steps_of, total_steps(spec, len(data.train)), answered))


def memory_policy_of(
    spec: TrainSpec, folder: Path, world: World, packing: Packing, taken_gib: float = 0.0
) -> MemoryPolicy:
    """The same for any packs, where `taken_gib` of each GPU are for something else than training."""
    limit_gib = spec.engine.gpu_memory_gib
    memory_gib = min(world.gather(use_memory(world.device, limit_gib))) if world.device.type == "cuda" else None

    def fastest() -> MemoryPolicy:
        family = family_of(folder)
        sizes = family.sizes_of(folder)
        model = count_params(sizes, parameters(family.tensors(sizes), spec.policy))
        if memory_gib is None:
            return least_policy(spec, model)
        chosen = best_policy(spec, model, packing, memory_gib - taken_gib)
        return replace(chosen.policy, peak_gib=chosen.memory.peak_gib + taken_gib)

    return world.on_main(fastest)
