"""Products in 8-bit floats are what their definition says: factors scaled and rounded, multiplied in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vidqa.engine.model.float8 import FLOAT8, NARROW, WIDE, both_ways, products, turned, use_float8
from vidqa.engine.torch_private import any_length

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
    ),
]
WIDTHS = (48, 16, 32)


def drawn(*shape: int, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """With a spread of sizes that 8 bits do not hold."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator) * torch.randn(shape[0], 1, generator=generator).mul(3).exp()
    return values.bfloat16().to(device)


def as_8_bits(factor: torch.Tensor, largest: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """What a factor is after rounding, in float32."""
    scale = torch.finfo(kind).max / largest.float()
    return (factor.float() * scale).to(kind).float() / scale


def expected(
    hidden: torch.Tensor, weights: list[torch.Tensor], gradients: list[torch.Tensor], granularity: str
) -> list[torch.Tensor]:
    """Outputs, and gradients of the input and of the weights."""

    def product(left: torch.Tensor, right: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """With the dimension that is summed over last of the first and first of the second."""
        if granularity == "rowwise":
            left_most, right_most = left.abs().amax(1, keepdim=True), right.abs().amax(0, keepdim=True)
            return as_8_bits(left, left_most, NARROW) @ as_8_bits(right, right_most, NARROW)
        return as_8_bits(left, left.abs().amax(), kind) @ as_8_bits(right, right.abs().amax(), NARROW)

    if granularity == "rowwise":
        outputs = [product(hidden, weight.t(), NARROW) for weight in weights]
        to_hidden = sum(product(g, weight, WIDE) for g, weight in zip(gradients, weights, strict=True))
        return [*outputs, to_hidden, *(product(g.t(), hidden, WIDE) for g in gradients)]
    weight, gradient = torch.cat(weights), torch.cat(gradients, dim=1)
    outputs = product(hidden, weight.t(), NARROW).split(WIDTHS, dim=1)
    return [*outputs, product(gradient, weight, WIDE), *product(gradient.t(), hidden, WIDE).split(WIDTHS)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("tokens", [192, 180])  # kernels sum over a multiple of 16
def test_products_are_those_of_rounded_factors(granularity: str, device: str, tokens: int) -> None:
    hidden = drawn(tokens, 64, device=device).requires_grad_()
    weights = [drawn(width, 64, seed=width, device=device).requires_grad_() for width in WIDTHS]
    gradients = [drawn(tokens, width, seed=width + 1, device=device) * 1e-6 for width in WIDTHS]

    outputs = products(hidden, weights, granularity)
    found = [*outputs, *torch.autograd.grad(outputs, [hidden, *weights], gradients)]

    with torch.no_grad():
        wanted = expected(hidden.detach(), [weight.detach() for weight in weights], gradients, granularity)
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert ours.dtype == torch.bfloat16
        off = (ours.float() - theirs).norm() / theirs.norm()
        assert off < 0.004, f"number {number}: {off}"  # what bfloat16 rounds; 8 bits round ten times as much


@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise"])
def test_a_factor_of_zeros_gives_zeros_and_one_that_is_not_finite_is_seen(granularity: str) -> None:
    weight = drawn(32, 64).requires_grad_()
    (output,) = products(torch.zeros(16, 64, dtype=torch.bfloat16), [weight], granularity)
    (gradient,) = torch.autograd.grad(output.sum(), [weight])
    assert not output.any() and not gradient.any()
    broken = drawn(16, 64)
    broken[3, 5] = torch.inf
    assert products(broken, [weight], granularity)[0][3].isnan().all()


def test_only_linear_layers_of_what_learns_are_told() -> None:
    layer, frozen = (nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(2))
    use_float8([layer, frozen.requires_grad_(False)], "rowwise")
    assert [getattr(part, FLOAT8, None) for part in (*layer, *frozen)] == ["rowwise", None, None, None]


@pytest.mark.parametrize("device", DEVICES)
def test_matrices_are_turned_and_joined(device: str) -> None:
    parts = [drawn(208, width, seed=width, device=device) for width in (48, 144)]
    below = [drawn(height, 136, seed=height, device=device)[:, :130] for height in (64, 208)]
    scale = torch.tensor(0.0037, device=device)
    rows, columns = both_ways(parts, scale)
    wanted = (torch.cat(parts, dim=1).float() * scale).to(WIDE)
    assert torch.equal(rows.float(), wanted.float()) and torch.equal(columns.float(), wanted.t().float())
    # Strides that are not those of a matrix of its own.
    wanted = (torch.cat(below).float() * scale).to(NARROW)
    assert torch.equal(turned(below, scale, scale).float(), wanted.t().float())
    assert torch.equal(turned([part.t() for part in parts[:1]], scale, scale).float(), turned_plainly(parts[0], scale))


@pytest.mark.parametrize("device", DEVICES)
def test_zeros_follow_up_to_what_a_kernel_sums_over(device: str) -> None:
    scale, part = torch.tensor(0.0037, device=device), drawn(132, 48, device=device)
    rows, columns = both_ways([part], scale)
    assert rows.shape == (132, 48) and columns.shape == (48, 144) and not columns[:, 132:].float().any()
    assert torch.equal(columns[:, :132].float(), rows.float().t())
    joined = turned([drawn(64, 48, device=device), part], scale, scale)
    assert joined.shape == (48, 208) and not joined[:, 196:].float().any()
    assert torch.equal(joined[:, 64:196].float(), turned_plainly(part, scale).t())


def turned_plainly(part: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (part.float() * scale).to(NARROW).float()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise"])
def test_compiled_products_have_the_gradients_of_eager_ones(granularity: str, device: str) -> None:
    hidden = drawn(180, 64, device=device).requires_grad_()
    weights = [drawn(width, 64, seed=width, device=device).requires_grad_() for width in (32, 64)]
    gradient = drawn(180, 96, seed=1, device=device)

    def layer(hidden_TD: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.cat(products(hidden_TD.relu(), weights, granularity), dim=1)

    backend = "inductor" if device == "cuda" else "aot_eager"
    torch._dynamo.reset()
    fused = any_length(torch.compile(layer, backend=backend, fullgraph=True))
    ours, theirs = (
        [output, *torch.autograd.grad(output, [hidden, *weights], gradient)]
        for output in (each(hidden, *weights) for each in (layer, fused))
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() / mine.norm() < 0.01


def test_another_number_of_tokens_is_not_compiled_again() -> None:
    weights = [torch.randn(rows, 32, requires_grad=True) for rows in (32, 64)]

    def layer(hidden_TD: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.cat(products(hidden_TD.relu(), weights, "tensorwise"), dim=1)

    compiled = any_length(torch.compile(layer, backend="aot_eager", fullgraph=True))
    for tokens in (48, 64, 80):
        with torch.compiler.set_stance("default" if tokens == 48 else "fail_on_recompile"):
            compiled(torch.randn(tokens, 32, requires_grad=True), *weights).sum().backward()
