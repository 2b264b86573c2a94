"""What the compiler is told: norms hold a row at once, in the releases of PyTorch that are supported."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch._inductor.choices import InductorChoices
from torch._inductor.utils import run_and_get_code

from vidqa.engine.model.compiling import WHOLE_ROW, WholeRows, any_length, prepare_compiler
from vidqa.engine.model.layers import Norm, layer_norm, root_mean_square_norm

NORMS = [root_mean_square_norm, layer_norm]


def test_the_choice_is_one_that_pytorch_asks_for() -> None:
    name = "should_use_persistent_reduction"
    own, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (WholeRows, InductorChoices))
    assert list(own) == list(theirs)
    assert isinstance(inspect.getattr_static(InductorChoices, name), staticmethod)
    prepare_compiler()
    assert torch._inductor.config.inductor_choices_class is WholeRows


@pytest.mark.parametrize("norm", NORMS)
def test_a_compiled_norm_is_the_eager_one(norm: object) -> None:
    prepare_compiler()
    torch._dynamo.reset()
    of = Norm(torch.rand(1152), torch.rand(1152), 1e-6)
    compiled = any_length(torch.compile(norm, fullgraph=True))  # type: ignore[call-overload]
    for rows in (3, 64):
        hidden = torch.randn(rows, 1152)
        assert torch.allclose(compiled(hidden, of), norm(hidden, of), atol=1e-5)  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [1152, WHOLE_ROW, 2 * WHOLE_ROW])
def test_a_kernel_holds_the_row(norm: object, width: int) -> None:
    """Once read, once written, up to WHOLE_ROW; forward and backward are those of float64."""
    prepare_compiler()
    torch._dynamo.reset()
    weight, bias = (torch.rand(width, device="cuda").requires_grad_() for _ in range(2))
    hidden = torch.randn(300, width, device="cuda").requires_grad_()
    compiled = any_length(torch.compile(norm, fullgraph=True))  # type: ignore[call-overload]
    with torch.no_grad():
        _, (code, *_) = run_and_get_code(compiled, hidden, Norm(weight, bias, 1e-6))
    assert ("triton_per_" in code, "triton_red_" in code) == (width <= WHOLE_ROW, width > WHOLE_ROW)
    found = compiled(hidden, Norm(weight, bias, 1e-6))
    output_gradients = torch.randn_like(found)
    ours = torch.autograd.grad(found, (hidden, weight), output_gradients)
    wide = [each.detach().double().requires_grad_() for each in (hidden, weight, bias)]
    exact = norm(wide[0], Norm(wide[1], wide[2], 1e-6))  # type: ignore[operator]
    theirs = torch.autograd.grad(exact, wide[:2], output_gradients.double())
    for mine, other in zip((found, *ours), (exact, *theirs), strict=True):
        assert torch.allclose(mine.double(), other, rtol=1e-4, atol=1e-3)
