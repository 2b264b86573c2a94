"""Copies of tensors in host memory, so that training goes on while they are written.

On a GPU the copies run on a stream of their own into pinned memory, beside the next step's forward and backward; only
the update of the weights waits for them, and it waits on the device. The thread that saves launches them: a stream
takes a thousand at once, a large model has more, and whoever launches those waits. The memory is taken once, in the
background, and kept: as many bytes as are copied. A job's environment has it found page by page before it is pinned
(see `platforms.engine_command`): until CUDA has pinned memory, nobody can launch a kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from vidqa.core.cli import note
from vidqa.engine.distributed import local_part
from vidqa.engine.host_memory import host_memory_like
from vidqa.engine.torch_private import dtensor_like


class PinnedSnapshot:
    """Host memory for tensors by name. `reserve` may run in a thread of its own before the first `copy`."""

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.pinned else None
        self._slots: dict[str, torch.Tensor] = {}  # this rank's part of each tensor
        self._updated: torch.cuda.Event | None = None  # what is copied is computed
        self._copied: torch.cuda.Event | None = None
        self._launched = threading.Event()
        self._launched.set()

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take memory for those of `tensors` that have none yet."""
        waiting = {name: local_part(tensor) for name, tensor in tensors.items() if name not in self._slots}
        try:
            slots = host_memory_like(waiting, pinned=self.pinned)
        except RuntimeError as refused:
            if not self.pinned:
                raise
            note(f"host memory cannot be pinned, so steps wait for checkpoints: {str(refused).splitlines()[0]}")
            self.pinned, slots = False, host_memory_like(waiting, pinned=False)
        self._slots.update(slots)

    def announce(self) -> None:
        """Say, in the thread that trains, that `copy` will be called in another one, with tensors as they are now."""
        if self.stream:
            self._updated = torch.cuda.current_stream().record_event()
        self._launched.clear()

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy, and return when all is there. The same memory is used every time: what an earlier call returned is
        overwritten."""
        try:
            self.reserve(tensors)
            with torch.cuda.stream(self.stream):  # does nothing where there is none
                if self.stream and self._updated:
                    self.stream.wait_event(self._updated)
                for name, tensor in tensors.items():
                    self._slots[name].copy_(local_part(tensor), non_blocking=True)
                if self.stream:
                    self._copied = self.stream.record_event()
        finally:
            self._launched.set()
        if self._copied:
            self._copied.synchronize()
        return {name: _like(tensor, self._slots[name]) for name, tensor in tensors.items()}

    def hold_update(self) -> None:
        """Called before every optimizer step: what this thread launches from now on runs after the copies."""
        self._launched.wait()
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)


def _like(tensor: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`part` as what `tensor` is: where that is sharded, the same rows of the same whole."""
    if not isinstance(tensor, DTensor):
        return part
    return dtensor_like(tensor, part)
