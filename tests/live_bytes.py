"""Bytes of tensors that live at one time, counted as PyTorch's operations create and free them: the value of
`torch.cuda.max_memory_allocated` on a GPU, for shapes that a CPU can compute.

    with LiveBytes() as live:
        model(...)
    live.peak    # above the bytes before
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts every storage that an operation creates until it is freed. Memory inside an operation is not counted:
    kernels of a GPU need little, and so does `whole`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.at = ""  # the operation of the peak
        self.inside = False
        self.seen: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(each) for each in _storages((args, kwargs or {}))}
        out = func(*args, **(kwargs or {}))
        if not self.inside:
            self.take(out, str(func), given)
        return out

    def take(self, out: Any, name: str, given: set[int]) -> None:
        for storage in _storages(out):
            if id(storage) in given or id(storage) in self.seen:
                continue
            self.now += (size := storage.nbytes())
            self.seen[id(storage)] = weakref.finalize(storage, self._drop, id(storage), size)
        if self.now > self.peak:
            self.peak, self.at = self.now, name

    def _drop(self, key: int, size: int) -> None:
        self.now -= size
        del self.seen[key]

    def whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Count the function as one operation: its outputs, but nothing inside it."""

        @wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            self.inside = True
            try:
                out = function(*args, **options)
            finally:
                self.inside = False
            self.take(out, function.__name__, {id(each) for each in _storages((args, options))})
            return out

        return counted


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [each.untyped_storage() for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
