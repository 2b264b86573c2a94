"""GPU memory of this process: what it may use, what is free, and giving it back."""

from __future__ import annotations

import gc

import torch

from vidqa.planning.budget.memory import GIB
from vidqa.planning.budget.memory_constants import CONSTANTS


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
