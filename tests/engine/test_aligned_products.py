"""A vision MLP whose inner width no matrix product reads well is computed in a wider one, to the same values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vidqa.engine.families.qwen_vl_layers import ALIGNED, VisionOutput, after_vision_attention, aligned
from vidqa.engine.model.layers import Adapter, Norm, Projection, project, root_mean_square_norm

WIDTH, INNER = 16, 20


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def block(inner: int) -> VisionOutput:
    wide, gate = (Projection(drawn(inner, WIDTH), drawn(inner), None) for _ in range(2))
    narrow = Projection(drawn(WIDTH, inner), drawn(WIDTH), None)
    output = Projection(drawn(WIDTH, WIDTH), drawn(WIDTH), None)
    return VisionOutput(output, Norm(drawn(WIDTH), None, 1e-6), wide, narrow, gate)


def test_values_and_gradients_are_those_of_the_written_formula() -> None:
    of, hidden, attended = block(INNER), drawn(5, WIDTH), drawn(5, WIDTH)
    linear = lambda values, layer: F.linear(values, layer.weight, layer.bias)  # noqa: E731
    middle = hidden + linear(attended, of.output)
    inside = root_mean_square_norm(middle, of.norm).double()
    expected = middle + linear(F.silu(linear(inside, of.gate)) * linear(inside, of.wide), of.narrow)
    found = after_vision_attention(hidden, attended, of)
    leaves = [hidden, attended, *(part for layer in (of.wide, of.narrow, of.gate) for part in layer[:2])]
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(each.square().sum(), leaves) for each in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def mlp(of: VisionOutput) -> tuple[Projection, Projection, Projection]:
    assert of.gate is not None
    return of.gate, of.wide, of.narrow


def test_inner_width_becomes_a_multiple() -> None:
    gate, wide, narrow = aligned(*mlp(block(INNER)))
    assert [len(gate.weight), len(wide.weight), narrow.weight.shape[1]] == [32, 32, 32]
    kept = mlp(block(3 * ALIGNED))
    assert aligned(*kept) == kept


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_adapters_of_all_three_layers_grow_with_them(dropout: float) -> None:
    """Dropout of the narrow one draws masks of another size, which cannot be compared."""
    of, hidden = block(INNER), drawn(5, WIDTH)
    up, down = drawn(INNER, 2), drawn(2, WIDTH)
    gate, wide, narrow = mlp(of)
    gate, wide = (layer._replace(adapter=Adapter(down, up, 0.5, dropout)) for layer in (gate, wide))
    narrow = narrow._replace(adapter=Adapter(drawn(2, INNER), drawn(WIDTH, 2), 0.5, dropout))
    *longer, wider = aligned(gate, wide, narrow)
    for grown, layer in zip(longer, (gate, wide), strict=True):
        (found,), (expected,) = (_seeded(hidden, each) for each in (grown, layer))
        torch.testing.assert_close(found[:, :INNER], expected)
        assert not found[:, INNER:].any()
    inner = drawn(5, INNER)
    if not dropout:
        torch.testing.assert_close(project(F.pad(inner, (0, 12)), wider), project(inner, narrow))


def _seeded(hidden: torch.Tensor, layer: Projection) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return project(hidden, layer)
