"""Host memory for copies of tensors, pinned where a GPU shall copy them beside its work."""

from __future__ import annotations

from collections.abc import Mapping

import torch

BLOCK_BYTES = 256 * 1024**2  # pinned memory is handed out in powers of two: full blocks waste none of it
ALIGNMENT = 256


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
