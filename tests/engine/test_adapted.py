"""Layers with LoRA adapters in one product equal the sum of two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model

from vidqa.engine.model.layers import Adapter, Projection, own, project, projection
from vidqa.engine.rl.update import without_adapters

TOKENS, WIDTH = 29, 48


def _random(*shape: int, trains: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_(trains)


def _layer(width: int, rank: int, scale: float, bias: bool = False) -> Projection:
    adapter = Adapter(_random(rank, WIDTH), _random(width, rank), scale, 0.0) if rank else None
    return Projection(_random(width, WIDTH, trains=False), _random(width, trains=False) if bias else None, adapter)


def _apart(hidden: torch.Tensor, layer: Projection) -> torch.Tensor:
    output = F.linear(hidden, layer.weight, layer.bias)
    adapter = layer.adapter
    if adapter is None:
        return output
    narrow = F.linear(F.dropout(hidden, adapter.dropout), adapter.down)
    return output + F.linear(narrow, adapter.up) * adapter.scale


def _compiled(function: Callable) -> Callable:
    return torch.compile(function, fullgraph=True, backend="aot_eager_decomp_partition")


@pytest.mark.parametrize("prepared", [lambda f: f, _compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("input_trains", [True, False])
@pytest.mark.parametrize(
    "shapes",
    [[(40, 4, 2.0)], [(40, 4, 2.0), (8, 6, 0.5), (8, 4, 1.0)], [(40, 4, 2.0), (8, 0, 0.0)], [(40, 64, 1.0)]],
    ids=["one", "three of their own ranks", "one without", "a rank as wide as a product takes"],
)
@pytest.mark.parametrize("bias", [False, True])
def test_one_product_is_the_sum_of_two(prepared: Callable, input_trains: bool, shapes: list, bias: bool) -> None:
    torch.manual_seed(len(shapes))
    torch._dynamo.reset()
    layers = [_layer(*shape, bias=bias) for shape in shapes]
    hidden = _random(TOKENS, WIDTH, trains=input_trains)
    adapters = [part for layer in layers if layer.adapter for part in layer.adapter[:2]]
    leaves = [*adapters, hidden] if input_trains else adapters
    ours, theirs = prepared(project)(hidden, *layers), [_apart(hidden, layer) for layer in layers]
    output_gradients = [torch.randn_like(output) for output in theirs]
    supervised = [number for number, output in enumerate(theirs) if output.requires_grad]

    def gradients(outputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad([outputs[n] for n in supervised], leaves, [output_gradients[n] for n in supervised])

    torch.testing.assert_close(list(ours), theirs)
    # The two parts of the input's gradient are added in float32.
    torch.testing.assert_close(gradients(list(ours)), gradients(theirs), rtol=1e-5, atol=1e-5)


def test_dropout_falls_on_the_input_of_each_adapter() -> None:
    torch.manual_seed(0)
    layers = [_layer(40, 4, 2.0), _layer(8, 0, 0.0)]
    adapter = layers[0].adapter
    assert adapter
    layers[0] = layers[0]._replace(adapter=adapter._replace(dropout=0.25))
    hidden = _random(TOKENS, WIDTH)
    outputs = torch.stack([project(hidden, *layers)[0] for _ in range(4000)]).detach()
    expected = _apart(hidden, layers[0]._replace(adapter=adapter)).detach()
    error = outputs.std(0) / len(outputs) ** 0.5
    assert ((outputs.mean(0) - expected).abs() < 5 * error).all() and error.min() > 0
    torch.testing.assert_close(project(hidden, *layers)[1], _apart(hidden, layers[1]))


@pytest.mark.parametrize("shares", [(0.25,), (0.25, 0.5), (0.5, 0.0)])
def test_with_dropout_too_one_product_is_the_sum_of_two(shares: tuple[float, ...]) -> None:
    """With the same masks: those of each adapter are drawn in turn. A share of nothing draws none."""
    torch.manual_seed(0)
    layers = []
    for share, (width, rank) in zip(shares, [(40, 4), (8, 6)], strict=False):
        layer = _layer(width, rank, 2.0)
        assert layer.adapter
        layers.append(layer._replace(adapter=layer.adapter._replace(dropout=share)))
    hidden = _random(TOKENS, WIDTH)
    leaves = [hidden, *(part for layer in layers if layer.adapter for part in layer.adapter[:2])]
    torch.manual_seed(1)
    ours = project(hidden, *layers)
    torch.manual_seed(1)
    theirs = [_apart(hidden, layer) for layer in layers]
    output_gradients = [torch.randn_like(output) for output in theirs]
    torch.testing.assert_close(list(ours), theirs)
    found, expected = (torch.autograd.grad(list(outputs), leaves, output_gradients) for outputs in (ours, theirs))
    torch.testing.assert_close(found, expected)


def test_the_copy_that_a_compiler_leaves_alone_is_well_made() -> None:
    """What PyTorch asks of operators: shapes and types foretold, nothing shared or changed."""
    torch.library.opcheck(own, (torch.randn(5, 48)[:, 3:9],))


def test_adapters_that_add_nothing_are_computed_by_the_same_graph() -> None:
    """Of GRPO's reference: a graph of its own would take the place of the policy's, whose next log-probabilities would
    be rounded otherwise."""
    torch._dynamo.reset()
    config = LoraConfig(r=4, lora_alpha=6, lora_dropout=0.0, target_modules=["0"])
    model = inject_adapter_in_model(config, torch.nn.Sequential(torch.nn.Linear(WIDTH, 40)))
    torch.nn.init.normal_(model[0].lora_B["default"].weight)
    hidden, compiled = torch.randn(TOKENS, WIDTH), _compiled(project)
    with torch._dynamo.config.patch(error_on_recompile=True):
        (policy,) = compiled(hidden, projection(model[0]))
        with without_adapters(model):
            (reference,) = compiled(hidden, projection(model[0]))
        (again,) = compiled(hidden, projection(model[0]))
    assert torch.equal(policy, again) and torch.allclose(reference, model[0].base_layer(hidden), atol=1e-5)
    assert torch.allclose(policy, model(hidden), atol=1e-5) and not torch.allclose(policy, reference)
