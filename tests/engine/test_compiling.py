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
