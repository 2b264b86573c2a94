"""Gradients of one rank are where FSDP would have copied them, and the same."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from vidqa.core.problem import ProblemError
from vidqa.engine.data.dataloader import Step
from vidqa.engine.distributed import World, local_part
from vidqa.engine.loading import fsdp
from vidqa.engine.signals import StopRequest
from vidqa.engine.training.learner import Learner
from vidqa.engine.training.objectives import Sums


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Watched(fsdp.OneRankSum):
    """Remembers what it gave: addresses of storages."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    def allocate(self, *size: Any, **kind: Any) -> torch.Tensor:
        tensor = super().allocate(*size, **kind)
        self.given.append(tensor.untyped_storage().data_ptr())
        return tensor


def gradients(mesh: Any, *, alone: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], list[Watched]]:
    """Of two micro-steps whose gradients are summed once, and the units' own ways to sum where there are such."""
    made: list[Watched] = []

    def watched() -> Watched:
        made.append(Watched())
        return made[-1]

    monkeypatch.setattr(fsdp, "OneRankSum", watched)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for unit in (model[0], model[2], model):
        fully_shard(unit, mesh=mesh, mp_policy=precision)
    policy = fsdp.Resharding(model, "never", sums_once=True, alone=alone)
    for number, rows in enumerate(torch.randn(2, 5, 8)):
        policy.begin(more_to_come=number == 0)
        model(rows).float().square().sum().backward()
    return [local_part(parameter.grad) for parameter in model.parameters() if parameter.grad is not None], made


def test_gradients_of_one_rank_are_summed_where_they_are(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, nothing = gradients(mesh, alone=False, monkeypatch=monkeypatch)
    found, ways = gradients(mesh, alone=True, monkeypatch=monkeypatch)
    assert nothing == [] and len(found) == 4
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    given = [watched.given for watched in ways if watched.given]
    assert [len(addresses) for addresses in given] == [2, 2] and all(first == second for first, second in given)
    assert {first for first, _ in given} == {gradient.untyped_storage().data_ptr() for gradient in found}


def test_a_sum_in_another_precision_or_place_is_refused() -> None:
    """Nobody would wait for the copy that it takes."""
    cpu = torch.device("cpu")
    for size, dtype in (((8,), torch.bfloat16), ((4,), torch.float32)):
        one = fsdp.OneRankSum()
        one.allocate((8,), dtype=torch.float32, device=cpu)
        with pytest.raises(AssertionError, match="FSDP asks for"):
            one.allocate(size, dtype=dtype, device=cpu)
    one = fsdp.OneRankSum()
    one(first := torch.zeros(8), first)
    with pytest.raises(AssertionError, match="other memory"):
        one(torch.zeros(8), first)


class Halves(nn.Module):
    """Only one of its layers is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.used(rows)


class SquaresOfRows:
    metrics = ()
    maxima = ()

    def __call__(self, model: nn.Module, batch: Any) -> Sums:
        return Sums(model(batch.rows).square().sum(), 5)


@pytest.mark.parametrize("number", [0, 7])
def test_a_parameter_without_gradient_ends_a_run_also_after_a_resume(mesh: Any, number: int) -> None:
    model = Halves()
    for unit in (model.used, model.unused, model):
        fully_shard(unit, mesh=mesh)
    learner = Learner(
        model=model,
        resharding=fsdp.Resharding(model, "never"),
        optimizer=torch.optim.SGD(model.parameters()),
        objective=SquaresOfRows(),
        max_norm=1.0,
        world=World(0, 1, torch.device("cpu"), mesh, None, None),
        stop=StopRequest(),
    )
    batch = SimpleNamespace(rows=torch.randn(5, 8), cached=None)
    with pytest.raises(ProblemError, match="ENGINE_NO_GRADIENT"):
        learner.train_step(Step(number, [SimpleNamespace(problems=[], batch=batch)], 1, 5.0))
    model.unused.requires_grad_(False)
    assert learner.train_step(Step(number, [SimpleNamespace(problems=[], batch=batch)], 1, 5.0)).count == 5
