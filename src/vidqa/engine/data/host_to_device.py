"""Copy batches to the GPU: all tensors in one pinned buffer, one copy on a separate stream.

The computing step never waits for a copy, nor the copy for the step: two pinned buffers alternate, so that one is
filled while the other is copied, and the host waits only, in the loader's thread, until a buffer is free again.
On a CPU the same code gathers a batch into one buffer of pageable memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

ALIGN = 256  # bytes; the alignment of every tensor in a buffer
ROOM = 1.25  # growth factor of a pinned buffer, so that it grows seldom


@dataclass(frozen=True)
class SentBatch:
    """A batch whose copy into `area` may still be in flight; `copied` is None on a CPU."""

    value: Any
    area: torch.Tensor
    copied: torch.cuda.Event | None

    def received(self) -> Any:
        """The batch, for work queued on the caller's current stream from now on."""
        if self.copied is not None:
            stream = torch.cuda.current_stream(self.area.device)
            stream.wait_event(self.copied)
            self.area.record_stream(stream)  # keeps the memory until that work is done
        return self.value


class BatchSender:
    """Copies batches to one device. One thread calls `send`, another `received`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned: list[_Pinned] = []
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._pinned = [_Pinned(), _Pinned()]

    def send(self, value: Any) -> SentBatch:
        """Copy `value`, a dataclass of CPU tensors at any depth; they may change once this returns."""
        tensors = _tensors(value)
        places, size = _layout(tensors)
        if not self._pinned:
            area = torch.empty(size, dtype=torch.uint8)
            _gather(tensors, places, area)
            return SentBatch(_spread(value, places, area), area, None)
        pinned = self._pinned.pop(0)
        self._pinned.append(pinned)
        with torch.cuda.stream(self._stream):
            _gather(tensors, places, pinned.free(size))
            area = torch.empty(size, dtype=torch.uint8, device=self.device)
            area.copy_(pinned.area[:size], non_blocking=True)
            pinned.copied = torch.cuda.Event(blocking=True)
            pinned.copied.record(self._stream)
        return SentBatch(_spread(value, places, area), area, pinned.copied)


class _Pinned:
    """Page-locked host memory, and the event of the last copy from it."""

    def __init__(self) -> None:
        self.area = torch.empty(0, dtype=torch.uint8)
        self.copied: torch.cuda.Event | None = None

    def free(self, size: int) -> torch.Tensor:
        """Wait for the last copy to end, then return the buffer, of at least `size` bytes."""
        if self.copied is not None:
            self.copied.synchronize()
        if len(self.area) < size:
            self.area = torch.empty(int(size * ROOM), dtype=torch.uint8, pin_memory=True)
        return self.area


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of `value` with `change` applied to its tensors, in dataclasses, dicts and tuples at any depth."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {name: mapped(item, change) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: mapped(getattr(value, field.name), change) for field in fields(value)})
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    mapped(value, collect)
    return tensors


def _layout(tensors: list[torch.Tensor]) -> tuple[list[int], int]:
    """The byte offset of each tensor in a buffer, and the size of the buffer in bytes."""
    places, size = [], 0
    for tensor in tensors:
        places.append(size)
        size += -(-tensor.nbytes // ALIGN) * ALIGN
    return places, size


def _gather(tensors: list[torch.Tensor], places: list[int], area: torch.Tensor) -> None:
    for tensor, start in zip(tensors, places, strict=True):
        _view(area, start, tensor).copy_(tensor)


def _spread(value: Any, places: list[int], area: torch.Tensor) -> Any:
    """A copy of `value` with every tensor replaced by its view of the buffer."""
    starts = iter(places)
    return mapped(value, lambda tensor: _view(area, next(starts), tensor))


def _view(area: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    return area[start : start + like.nbytes].view(like.dtype).view(like.shape)
