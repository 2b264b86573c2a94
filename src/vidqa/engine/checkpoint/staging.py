"""Copies of tensors in host memory, so that training goes on while they are written.

On a GPU the copies run on a stream of their own into pinned memory, beside the next step's forward and backward; only
the update of the weights waits for them, and it waits on the device. A rank's 24 GB of an 8B model on four GPUs cost
the step some milliseconds of launches instead of the seconds that a copy to ordinary memory takes. The memory is taken
once, in the background, and kept: as many bytes as are copied. A job's environment has it found page by page before it
is pinned (see `platforms.engine_command`): until CUDA has pinned memory, nobody can launch a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from vidqa.cli import note
from vidqa.engine.distributed import local_part

BLOCK_BYTES = 256 * 1024**2  # pinned memory is handed out in powers of two: full blocks waste none of it
ALIGNMENT = 256


class Staging:
    """Host memory for tensors by name. `reserve` may run in a thread of its own before the first `copy`."""

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.pinned else None
        self._slots: dict[str, torch.Tensor] = {}  # this rank's part of each tensor
        self._copied: torch.cuda.Event | None = None

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take memory for those of `tensors` that have none yet."""
        waiting = {name: local_part(tensor) for name, tensor in tensors.items() if name not in self._slots}
        for names in _blocks({name: _bytes(part) for name, part in waiting.items()}):
            block = self._host_memory(sum(_bytes(waiting[name]) for name in names))
            begin = 0
            for name in names:
                self._slots[name] = _slot(block, begin, waiting[name])
                begin += _bytes(waiting[name])

    def _host_memory(self, size: int) -> torch.Tensor:
        if self.pinned:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as refused:
                note(f"host memory cannot be pinned, so steps wait for checkpoints: {str(refused).splitlines()[0]}")
                self.pinned = False
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Start to copy; the result may be read after `wait`, and the originals changed after `hold_update`. The same
        memory is used every time: what an earlier call returned is overwritten."""
        self.reserve(tensors)
        if self.stream is None:
            for name, tensor in tensors.items():
                self._slots[name].copy_(local_part(tensor))
        else:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                for name, tensor in tensors.items():
                    self._slots[name].copy_(local_part(tensor), non_blocking=True)
                self._copied = self.stream.record_event()
        return {name: _like(tensor, self._slots[name]) for name, tensor in tensors.items()}

    def hold_update(self) -> None:
        """Whatever this thread launches from now on runs after the copies; called before every optimizer step."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def wait(self) -> None:
        """Until the copies are complete."""
        if self._copied is not None:
            self._copied.synchronize()


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


def _like(tensor: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`part` as what `tensor` is: where that is sharded, the same rows of the same whole."""
    if not isinstance(tensor, DTensor):
        return part
    # `from_local` would move it to the mesh's device.
    return DTensor(part, tensor._spec, requires_grad=False)
