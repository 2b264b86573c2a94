"""Gradients of one rank are where FSDP would have copied them, and the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from vidqa.engine.distributed import local_part
from vidqa.engine.model.resharding import OneRank


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Watched(OneRank):
    """Remembers what it gave: addresses of storages."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    def allocate(self, *size: Any, **kind: Any) -> torch.Tensor:
        tensor = super().allocate(*size, **kind)
        self.given.append(tensor.untyped_storage().data_ptr())
        return tensor


def gradients(mesh: Any, sums: list[Any] | None, *, once: bool) -> list[torch.Tensor]:
    """Of two micro-steps, with each unit's own way to sum, or FSDP's; summed `once`, or in each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    units: list[Any] = [model[0], model[2], model]
    for number, unit in enumerate(units):
        fully_shard(unit, mesh=mesh, mp_policy=precision)
        if sums:
            unit.set_custom_reduce_scatter(sums[number])
    for number, rows in enumerate(torch.randn(2, 5, 8)):
        units[-1].set_requires_gradient_sync(number == 1 or not once)
        model(rows).float().square().sum().backward()
    return [local_part(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("once", [True, False])
def test_gradients_of_one_rank_are_summed_where_they_are(mesh: Any, once: bool) -> None:
    sums = [Watched(), Watched(), Watched()]
    found, expected = gradients(mesh, sums, once=once), gradients(mesh, None, once=once)
    assert len(found) == 4 and all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    for watched, mine in zip(sums, (found[:2], found[2:]), strict=False):
        first = watched.given[:2]
        assert len(watched.given) == (2 if once else 4) and first[0] == first[1]
        assert {gradient.untyped_storage().data_ptr() for gradient in mine} == {first[0]}
