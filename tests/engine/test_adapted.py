"""Layers with LoRA adapters in one product equal the sum of two, and operations that a compiler leaves whole are what
they stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from vidqa.engine.model import whole
from vidqa.engine.model.adapted import Adapter
from vidqa.engine.model.layers import Projection, project

TOKENS, WIDTH = 29, 48
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _random(*shape: int, trains: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_(trains)


def _layer(width: int, rank: int, scale: float, bias: bool = False) -> Projection:
    adapter = Adapter(_random(rank, WIDTH), _random(width, rank), scale, 0.0) if rank else None
    return Projection(_random(width, WIDTH, trains=False), _random(width, trains=False) if bias else None, adapter)


def _apart(hidden: torch.Tensor, layer: Projection) -> torch.Tensor:
    output = F.linear(hidden, layer.weight, layer.bias)
    adapter = layer.adapter
    return output if adapter is None else output + F.linear(F.linear(hidden, adapter.down), adapter.up) * adapter.scale


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
    pulls = [torch.randn_like(output) for output in theirs]
    learned = [number for number, output in enumerate(theirs) if output.requires_grad]

    def gradients(outputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad([outputs[n] for n in learned], leaves, [pulls[n] for n in learned])

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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operations_that_a_compiler_leaves_whole_are_well_made(device: str, dtype: torch.dtype) -> None:
    """What PyTorch asks of operators: shapes and types foretold, gradients registered, nothing shared or changed."""
    hidden, weight, bias = (
        torch.randn(*shape, dtype=dtype, device=device, requires_grad=True) for shape in ((5, 48), (48,), (48,))
    )
    torch.library.opcheck(whole._layer_norm, (hidden, weight, bias, 1e-6))
    torch.library.opcheck(whole.own, (hidden.detach()[:, 3:9],))


@pytest.mark.parametrize("device", DEVICES)
def test_a_layer_norm_left_whole_is_pytorchs(device: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = [torch.randn(*shape, device=device, requires_grad=True) for shape in ((5, 48), (48,), (48,))]
    pull = torch.randn(5, 48, device=device)
    ours = _compiled(whole.layer_norm)(*inputs, 1e-6)
    theirs = F.layer_norm(inputs[0], (48,), *inputs[1:], 1e-6)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(theirs, inputs, pull))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_gelu_in_the_product_before_it() -> None:
    hidden, weight, bias = (
        torch.randn(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((640, 1152), (4304, 1152), (4304,))
    )
    expected = F.gelu(F.linear(hidden.double(), weight.double(), bias.double()), approximate="tanh")
    found = whole.linear_gelu(hidden, weight, bias).double()
    assert ((found - expected).norm() / expected.norm()).item() < 5e-3
