"""Resharding of FSDP units: the time at which they free gathered weights.

Gathering a layer for every forward and every backward keeps memory small. If there is room, weights stay gathered
until the last backward of an optimizer step, as they do not change before: then each layer is gathered once per step,
and the root, whose communication does not overlap, sums its gradients over the ranks once per step. If nothing is
sharded, every unit does so: a rank has room for whole gradients, and each sum would cost copies of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from vidqa.planning.budget.memory import Reshard


class OneRankSum:
    """A reduce-scatter over one rank: the output buffer is the input buffer. FSDP would copy gradients into buffers of
    its own stream, which take the memory of all gradients while activations need it.

    FSDP2 calls `allocate` twice for each unit, for the input and then for the output. It must neither add the output to
    an earlier one nor change its precision: the memory is reused without waiting for its stream.
    """

    def __init__(self) -> None:
        self._summed: torch.Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        summed, self._summed = self._summed, None
        if summed is None:
            summed = self._summed = torch.empty(size, dtype=dtype, device=device)
        else:
            same = (summed.shape, summed.dtype, summed.device) == (torch.Size(size), dtype, device)
            assert same, f"FSDP asks for {tuple(size)} {dtype} for the sum of {tuple(summed.shape)} {summed.dtype}"
        return summed

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        """Do nothing: the sum over one rank is its input."""
        assert output_tensor.data_ptr() == input_tensor.data_ptr(), "FSDP sums into other memory than it asked for"


class Resharding:
    """Controls, by the memory policy, after which passes a sharded model frees gathered weights, and which units sum
    their gradients over the ranks once per step: all if `sums_once`, in the gradients' precision, else the root if its
    weights stay gathered. `alone` means that there is one rank."""

    def __init__(self, model: Any, policy: Reshard, *, sums_once: bool = False, alone: bool = False) -> None:
        self.model, self.policy = model, policy
        self._units = _units(model)  # computed once: a walk over all modules takes milliseconds
        self._waiting = self._units if sums_once else [model] if policy == "never" else []
        if sums_once and alone:
            for unit in self._units:
                unit.set_custom_reduce_scatter(OneRankSum())  # type: ignore[arg-type]
        self._after_forward()

    def _after_forward(self) -> None:
        self.model.set_reshard_after_forward(self.policy != "never")
        self.model.set_reshard_after_forward(self.policy == "always", recurse=False)

    def begin(self, *, more_to_come: bool) -> None:
        """Prepare a micro-step; `more_to_come` is False for the last one of an optimizer step."""
        if self.policy == "never":
            for unit in self._units:
                unit.set_reshard_after_backward(not more_to_come, recurse=False)
        for unit in self._waiting:
            unit.set_requires_gradient_sync(not more_to_come, recurse=False)

    @contextmanager
    def everything(self) -> Iterator[None]:
        """Gather the whole model in compute precision on every rank inside the block, so that each can generate on its
        own without communication in every layer."""
        self.model.set_reshard_after_forward(False)
        for unit in _units(self.model):
            unit.unshard()
        try:
            yield
        finally:
            reshard(self.model)
            self._after_forward()


def reshard(model: Any) -> None:
    """Free all gathered weights; each rank has its own rows again, as the optimizer expects."""
    for unit in _units(model):
        unit.reshard()


def _units(model: Any) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
