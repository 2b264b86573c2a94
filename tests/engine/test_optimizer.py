"""The learning rate against a table made by hand, decay groups, and clipping against torch's own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vidqa.engine.training.optimizer import build_optimizer, clip_gradients, learning_rate, set_learning_rates


def train(**changes: Any) -> SimpleNamespace:
    defaults = {
        "optm_name": "AdamW",
        "optm_lr": 1.0,
        "optm_impl": "foreach",
        "optm_weight_decay": 0.1,
        "optm_betas": [0.9, 0.95],
        "epsilon": 1e-7,
        "optm_warmup_start_factor": 0.0,
        "optm_decay_type": "none",
        "optm_decay_ratio": None,
        "optm_min_lr_factor": 0.0,
    }
    return SimpleNamespace(**{**defaults, **changes})


def rates(total: int, warmup: int, **changes: Any) -> list[float]:
    return [learning_rate(step, total, warmup, train(**changes)) for step in range(total)]


@pytest.mark.parametrize(
    ("total", "warmup", "changes", "expected"),
    [
        (4, 0, {}, [1, 1, 1, 1]),
        (4, 2, {}, [0.5, 1, 1, 1]),
        (4, 2, {"optm_warmup_start_factor": 0.5}, [0.75, 1, 1, 1]),
        (4, 0, {"optm_decay_type": "linear"}, [1, 0.75, 0.5, 0.25]),
        (4, 0, {"optm_decay_type": "linear", "optm_min_lr_factor": 0.2}, [1, 0.8, 0.6, 0.4]),
        (4, 0, {"optm_decay_type": "sqrt"}, [1, 0.5, 1 - math.sqrt(0.5), 1 - math.sqrt(0.75)]),
        (4, 0, {"optm_decay_type": "cosine"}, [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]),
        # Warm-up over two steps, then a fall over the remaining four.
        (6, 2, {"optm_decay_type": "linear"}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        # The fall takes the last half only.
        (8, 0, {"optm_decay_type": "linear", "optm_decay_ratio": 0.5}, [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        (8, 2, {"optm_decay_type": "linear", "optm_decay_ratio": 0.5}, [0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        (4, 0, {"optm_decay_type": "linear", "optm_decay_ratio": 0.0}, [1, 1, 1, 1]),
        # Warm-up and fall are longer than the run: the fall begins where the warm-up ends.
        (4, 2, {"optm_decay_type": "linear", "optm_decay_ratio": 1.0}, [0.5, 1, 1, 0.5]),
        (8, 4, {"optm_decay_type": "linear", "optm_decay_ratio": 0.75}, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        # A part of a step is rounded: 1.5 are two.
        (5, 0, {"optm_decay_type": "linear", "optm_decay_ratio": 0.3}, [1, 1, 1, 1, 0.5]),
        (4, 4, {"optm_decay_type": "cosine"}, [0.25, 0.5, 0.75, 1]),
        (1, 0, {"optm_decay_type": "cosine"}, [1]),
        (1, 1, {"optm_decay_type": "cosine"}, [1]),
    ],
)
def test_the_rate_of_every_step(total: int, warmup: int, changes: dict[str, Any], expected: list[float]) -> None:
    assert rates(total, warmup, **changes) == pytest.approx(expected, abs=1e-12)


def test_the_rate_scales_with_the_peak() -> None:
    changes = {"optm_decay_type": "cosine", "optm_min_lr_factor": 0.1}
    assert rates(10, 3, optm_lr=2e-5, **changes) == pytest.approx([2e-5 * rate for rate in rates(10, 3, **changes)])


@pytest.mark.parametrize("kind", ["linear", "cosine", "sqrt", "none"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("ratio", [None, 0.3, 1.0])
def test_rates_rise_then_fall_and_stay_in_bounds(kind: str, warmup: int, ratio: float | None) -> None:
    found = rates(50, warmup, optm_decay_type=kind, optm_decay_ratio=ratio, optm_min_lr_factor=0.1)
    assert found[0] > 0  # the first step learns
    assert found[:warmup] == sorted(found[:warmup])
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert max(found) <= 1 + 1e-12 and min(found[warmup:]) >= 0.1 - 1e-12
    # The step after the last would be at the floor: the fall neither ends early nor is cut off.
    after = learning_rate(50, 50, warmup, train(optm_decay_type=kind, optm_decay_ratio=ratio, optm_min_lr_factor=0.1))
    assert after == pytest.approx(1.0 if kind == "none" else 0.1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.kernel = nn.Conv3d(1, 2, 2)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)


def test_matrices_decay_and_vectors_do_not() -> None:
    model = Model()
    optimizer = build_optimizer(model, train())
    assert all(group["decoupled_weight_decay"] for group in optimizer.param_groups)  # AdamW
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    expected = {
        "matrix.weight": 0.1,
        "kernel.weight": 0.1,
        "matrix.bias": 0.0,
        "kernel.bias": 0.0,
        "norm.weight": 0.0,
        "norm.bias": 0.0,
    }
    assert {name: decays.get(id(p)) for name, p in model.named_parameters() if p.requires_grad} == expected
    assert len(decays) == len(expected)  # and nothing frozen
    assert all(g["betas"] == (0.9, 0.95) and g["eps"] == 1e-7 for g in optimizer.param_groups)
    schedule = train(optm_lr=0.01)
    rate = set_learning_rates(optimizer, 5, 10, 0, schedule)
    assert {group["lr"] for group in optimizer.param_groups} == {rate}


def test_a_model_of_vectors_only_has_one_group() -> None:
    assert len(build_optimizer(nn.LayerNorm(3), train(optm_name="Adam")).param_groups) == 1


@pytest.mark.parametrize("kind", ["AdamW", "Adam"])
@pytest.mark.parametrize("implementation", ["fused", "foreach", "for-loop"])
def test_one_step_is_torchs_own(kind: str, implementation: str) -> None:
    torch.manual_seed(0)
    ours = nn.Linear(5, 5, bias=False)
    theirs = nn.Linear(5, 5, bias=False)
    theirs.load_state_dict(ours.state_dict())
    optimizer = build_optimizer(ours, train(optm_name=kind, optm_lr=0.01, optm_impl=implementation))
    reference = getattr(torch.optim, kind)(theirs.parameters(), lr=0.01, betas=(0.9, 0.95), eps=1e-7, weight_decay=0.1)
    taken = {name: value.data_ptr() for name, value in optimizer.state[ours.weight].items()}
    data = torch.randn(3, 5)
    for model, stepper in ((ours, optimizer), (theirs, reference)):
        model(data).square().sum().backward()
        stepper.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    state, plain = (dict(optimizer.state[ours.weight]), dict(reference.state[theirs.weight]))
    torch.testing.assert_close(state, plain)
    assert taken == {name: value.data_ptr() for name, value in state.items()}, "the memory is that of before the step"


def gradients(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((7, 5), (3,), (2, 2, 2))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return [*parameters, nn.Parameter(torch.zeros(4))]  # the last has no gradient


@pytest.mark.parametrize("limit", [0.5, 1.0, 1e6])
@pytest.mark.parametrize("scale", [1.0, 0.25, 3.0])
def test_clipping_is_torchs_own_on_scaled_gradients(limit: float, scale: float) -> None:
    ours, theirs = gradients(), gradients()
    for parameter in theirs[:-1]:
        parameter.grad *= scale
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit)
    norm = clip_gradients(ours, limit, torch.tensor(scale))
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6) and norm.dtype == torch.float32
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    assert ours[-1].grad is None


def test_a_limit_of_zero_scales_and_does_not_clip() -> None:
    ours, plain = gradients(), gradients()
    norm = clip_gradients(ours, 0.0, torch.tensor(2.0))
    for mine, other in zip(ours[:-1], plain[:-1], strict=True):
        torch.testing.assert_close(mine.grad, 2 * other.grad)
    flat = torch.cat([p.grad.flatten() for p in plain[:-1]])
    assert norm.item() == pytest.approx(2 * flat.norm().item(), rel=1e-6)


def test_gradients_that_are_zero_stay_zero() -> None:
    parameters = gradients()
    for parameter in parameters[:-1]:
        parameter.grad.zero_()
    assert clip_gradients(parameters, 1.0, torch.tensor(1.0)).item() == 0
    assert not any(parameter.grad.any() for parameter in parameters[:-1])


def test_a_gradient_that_is_not_finite_is_seen_in_the_norm() -> None:
    parameters = gradients()
    parameters[0].grad[0, 0] = float("nan")
    assert math.isnan(clip_gradients(parameters, 1.0, torch.tensor(1.0)).item())
