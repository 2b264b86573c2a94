"""The compiler with the settings of a training."""

from __future__ import annotations

import pytest
import torch

from vidqa.engine.model.layers import Norm, layer_norm, root_mean_square_norm
from vidqa.engine.torch_private import any_length, prepare_compiler

NORMS = [root_mean_square_norm, layer_norm]


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_a_compiled_norm_is_the_eager_one(norm: object) -> None:
    prepare_compiler()
    torch._dynamo.reset()
    of = Norm(torch.rand(1152), torch.rand(1152), 1e-6)
    compiled = any_length(torch.compile(norm, fullgraph=True))  # type: ignore[call-overload]
    for rows in (3, 64):
        hidden = torch.randn(rows, 1152)
        assert torch.allclose(compiled(hidden, of), norm(hidden, of), atol=1e-5)  # type: ignore[operator]


def test_a_function_may_have_many_graphs() -> None:
    """At PyTorch's limit of eight a function of one graph raises."""
    prepare_compiler()
    torch._dynamo.reset()
    function = any_length(torch.compile(lambda hidden, scale: hidden * scale, fullgraph=True, backend="eager"))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for trains in (False, True):
            for recorded in (False, True):
                hidden = torch.ones(8, 4, dtype=dtype, requires_grad=trains)
                with torch.set_grad_enabled(recorded):
                    assert function(hidden, 2.0).requires_grad == (trains and recorded)
