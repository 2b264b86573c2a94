"""Memory of the GPU: what this process may use, what is free, giving it back; of the host: room for copies."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import torch

from vidqa.planning.budget.memory import GIB
from vidqa.planning.budget.memory_constants import CONSTANTS

BLOCK_BYTES = 256 * 1024**2  # pinned memory is handed out in powers of two: full blocks waste none of it
ALIGNMENT = 256


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


def use_device(device: torch.device) -> None:
    """For a new thread, which would otherwise use the first GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _index(device: torch.device) -> int:
    """The number of a GPU; "cuda" without one is the present GPU, as everywhere in PyTorch but in memory fractions."""
    return torch.cuda.current_device() if device.index is None else device.index


def host_memory_like(parts: Mapping[str, torch.Tensor], *, pinned: bool) -> dict[str, torch.Tensor]:
    """Host memory, not written yet, for tensors like `parts`. Raises RuntimeError where it cannot be pinned."""
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
    """Names in their order, as many to a block as fit; a tensor larger than a block has one of its own."""
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
    """A tensor like `part` in the block's memory. Not a view: its storage ends where it ends, and so whoever writes it
    to a file need not cut it out first."""
    if not part.numel():
        return torch.empty_like(part, device="cpu")
    flat = torch.frombuffer(block.numpy(), dtype=part.dtype, offset=begin, count=part.numel())
    return flat.view(part.shape)
