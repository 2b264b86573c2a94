"""GPU memory: limit, free memory and release; and host memory for copies of tensors."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import torch

from vidqa.planning.budget.memory import GIB
from vidqa.planning.budget.memory_constants import CONSTANTS

BLOCK_BYTES = 256 * 1024**2  # pinned memory is allocated in powers of two: full blocks waste none
ALIGNMENT = 256


def share_of_gpu(device: torch.device) -> float:
    """The share of a GPU's memory that this process may use, after `use_memory`."""
    return torch.cuda.get_per_process_memory_fraction(_index(device))


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that this process can still allocate: free memory, within the process's limit."""
    free, total = torch.cuda.mem_get_info(device)
    return min(free, int(share_of_gpu(device) * total) - torch.cuda.memory_reserved(device))


def release_memory() -> None:
    """Return the GPU memory of models that are no longer referenced, so that the next model has room."""
    gc.collect()  # modules and their hooks form reference cycles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def use_memory(device: torch.device, limit_gib: float | None) -> float:
    """Set the limit of this process and return the GiB of a GPU that it may use; PyTorch enforces it from here on."""
    has_gib = torch.cuda.get_device_properties(device).total_memory / GIB
    if limit_gib is None or limit_gib >= has_gib:
        return has_gib
    # The limit includes the memory of CUDA and NCCL beside PyTorch's tensors.
    torch.cuda.set_per_process_memory_fraction((limit_gib - CONSTANTS.outside_gib) / has_gib, _index(device))
    return limit_gib


def use_device(device: torch.device) -> None:
    """Set the GPU of a new thread, which would otherwise use the first GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _index(device: torch.device) -> int:
    """The index of a GPU; "cuda" without index is the current GPU, as everywhere in PyTorch except memory fractions."""
    return torch.cuda.current_device() if device.index is None else device.index


def host_memory_like(parts: Mapping[str, torch.Tensor], *, pinned: bool) -> dict[str, torch.Tensor]:
    """Uninitialised host memory for tensors like `parts`. Raises RuntimeError if it cannot be pinned."""
    slots = {}
    for names in _blocks({name: _bytes(part) for name, part in parts.items()}):
        block = torch.empty(sum(_bytes(parts[name]) for name in names), dtype=torch.uint8, pin_memory=pinned)
        begin = 0
        for name in names:
            slots[name] = _slot(block, begin, parts[name])
            begin += _bytes(parts[name])
    return slots


def _bytes(part: torch.Tensor) -> int:
    return -(-part.nbytes // ALIGNMENT) * ALIGNMENT


def _blocks(sizes: Mapping[str, int]) -> list[list[str]]:
    """Group names, in order, into blocks of at most BLOCK_BYTES; a larger tensor gets a block of its own."""
    blocks: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not blocks or size > room:
            blocks.append([])
            room = BLOCK_BYTES
        blocks[-1].append(name)
        room -= size
    return blocks


def _slot(block: torch.Tensor, begin: int, part: torch.Tensor) -> torch.Tensor:
    """A tensor like `part` in the block's memory. It is not a view: its storage ends with it, so that writing it to a
    file needs no copy first."""
    if not part.numel():
        return torch.empty_like(part, device="cpu")
    flat = torch.frombuffer(block.numpy(), dtype=part.dtype, offset=begin, count=part.numel())
    return flat.view(part.shape)
