"""The memory policy of a run: the fastest that its GPUs allow, by the estimate that preflight prints."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vidqa.engine.distributed import World
from vidqa.engine.prepare import Prepared, on_main
from vidqa.families import family_of
from vidqa.planning.budget.autotune import Packing, answered_samples, best_policy, least_policy
from vidqa.planning.budget.memory import GIB, MemoryPolicy, count_params
from vidqa.planning.budget.memory_constants import CONSTANTS
from vidqa.planning.budget.params import parameters
from vidqa.planning.packing.steps import Steps
from vidqa.spec import total_steps


def choose_memory_policy(spec: Any, folder: Path, data: Prepared, world: World) -> MemoryPolicy:
    """What the spec says, and of what it leaves open the fastest that fits the smallest GPU of the run. A CPU's memory
    is not estimated: everything is computed again there, in packs of the usual size."""
    steps_of = partial(Steps, spec, data.train, world.data_ranks, world.device.type)
    answered = answered_samples(spec, data.validation)
    return memory_policy_of(spec, folder, world, Packing(steps_of, total_steps(spec, len(data.train)), answered))


def memory_policy_of(spec: Any, folder: Path, world: World, packing: Packing, taken_gib: float = 0.0) -> MemoryPolicy:
    """The same for any packs, where `taken_gib` of each GPU are for something else than training."""
    limit_gib = spec.engine.gpu_memory_gib
    memory_gib = min(world.gather(use_memory(world.device, limit_gib))) if world.device.type == "cuda" else None

    def fastest() -> MemoryPolicy:
        family = family_of(folder)
        sizes = family.sizes_of(folder)
        model = count_params(sizes, parameters(family.tensors(sizes), spec.policy))
        if memory_gib is None:
            return least_policy(spec, model)
        found = best_policy(spec, model, packing, memory_gib - taken_gib)
        return replace(found.policy, peak_gib=found.memory.peak_gib + taken_gib)

    return on_main(world, fastest)


def share_of_gpu(device: torch.device) -> float:
    """The part of a GPU's memory that this process may take, after `use_memory`."""
    return torch.cuda.get_per_process_memory_fraction(_index(device))


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that this process can still take: what is free, of what it may take."""
    free, total = torch.cuda.mem_get_info(device)
    return min(free, int(share_of_gpu(device) * total) - torch.cuda.memory_reserved(device))


def release_memory() -> None:
    """Give the GPU back what models that nobody holds any more have taken, so that the next one has room."""
    gc.collect()  # modules and their hooks hold one another
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def use_memory(device: torch.device, limit_gib: float | None) -> float:
    """GiB of a GPU that this process may take, which PyTorch keeps to from here on."""
    has_gib = torch.cuda.get_device_properties(device).total_memory / GIB
    if limit_gib is None or limit_gib >= has_gib:
        return has_gib
    # What CUDA and NCCL take beside PyTorch's tensors is part of the limit.
    torch.cuda.set_per_process_memory_fraction((limit_gib - CONSTANTS.outside_gib) / has_gib, _index(device))
    return limit_gib


def _index(device: torch.device) -> int:
    """The number of a GPU; "cuda" without one is the present GPU, as everywhere in PyTorch but in memory fractions."""
    return torch.cuda.current_device() if device.index is None else device.index
