"""When FSDP's units reshard: free the weights that they gathered.

Gathering a layer for every forward and every backward keeps memory small. Where there is room, weights stay gathered
until the last backward of an optimizer step, before which they do not change: then each layer is gathered once a step,
and the root, whose communication nothing hides, sums its gradients over the ranks once a step. Where nothing is
sharded, every unit does: a rank has room for whole gradients, and each sum would cost copies of them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from vidqa.planning.budget.memory import Reshard


class OneRankSum:
    """A reduce-scatter over one rank: the output buffer is the input buffer. FSDP would copy gradients into memory of
    its own stream, so that as many bytes as all gradients take lie idle while activations need them.

    FSDP2 calls `allocate` twice for each unit, for the input and then for the output. It must neither add the output to
    an earlier one nor change its precision: the memory is used again without waiting for its stream.
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
        """The sum over one rank is its input."""
        assert output_tensor.data_ptr() == input_tensor.data_ptr(), "FSDP sums into other memory than it asked for"


class Resharding:
    """Tells a sharded model whose gathered weights are freed after forward, as its memory policy says, and which units
    sum their gradients over the ranks once a step: all if `sums_once`, in the precision that they have, else the root
    where its weights stay. `alone` says that there is one rank."""

    def __init__(self, model: Any, policy: Reshard, *, sums_once: bool = False, alone: bool = False) -> None:
        self.model, self.policy = model, policy
        self._units = _units(model)  # found once: a walk over all modules takes milliseconds
        self._waiting = self._units if sums_once else [model] if policy == "never" else []
        if sums_once and alone:
            for unit in self._units:
                unit.set_custom_reduce_scatter(OneRankSum())  # type: ignore[arg-type]
        self._after_forward()

    def _after_forward(self) -> None:
        self.model.set_reshard_after_forward(self.policy != "never")
        self.model.set_reshard_after_forward(self.policy == "always", recurse=False)

    def begin(self, *, more_to_come: bool) -> None:
        """Before a micro-step; `more_to_come` says that it is not the last of its optimizer step."""
        if self.policy == "never":
            for unit in self._units:
                unit.set_reshard_after_backward(not more_to_come, recurse=False)
        for unit in self._waiting:
            unit.set_requires_gradient_sync(not more_to_come, recurse=False)

    @contextmanager
    def everything(self) -> Iterator[None]:
        """Inside the block every rank holds the whole model in compute precision, so that each can generate on its own
        without meeting the others at every layer."""
        self.model.set_reshard_after_forward(False)
        for unit in _units(self.model):
            unit.unshard()
        try:
            yield
        finally:
            reshard(self.model)
            self._after_forward()


def reshard(model: Any) -> None:
    """Free whatever is gathered; each rank has its own rows again, as the optimizer knows them."""
    for unit in _units(model):
        unit.reshard()


def _units(model: Any) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
