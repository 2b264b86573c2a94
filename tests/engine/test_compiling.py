"""The compiler with the settings of a training."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from vidqa import engine
from vidqa.engine.model.layers import Adapter, Norm, Projection, layer_norm, project, root_mean_square_norm
from vidqa.engine.torch_private import any_length, prepare_compiler, source_hash

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
    function = any_length(torch.compile(torch.sin, fullgraph=True, backend="eager"))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for trains in (False, True):
            for recorded in (False, True):
                hidden = torch.ones(8, 4, dtype=dtype, requires_grad=trains)
                with torch.set_grad_enabled(recorded):
                    assert function(hidden).requires_grad == (trains and recorded)


@pytest.mark.slow
def test_the_graph_of_a_layer_with_an_adapter_is_cached() -> None:
    """Forward and backward, which the cache leaves out by default if an autograd function is in them."""
    prepare_compiler()
    torch._dynamo.reset()
    counters["aot_autograd"].clear()
    adapter = Adapter(
        torch.rand(4, 8, requires_grad=True), torch.rand(16, 4, requires_grad=True), torch.tensor(2.0), 0.0
    )
    layer = Projection(torch.rand(16, 8), None, adapter)
    with fresh_cache():
        compiled = any_length(torch.compile(project, fullgraph=True))
        for outcome in ("autograd_cache_saved", "autograd_cache_hit"):
            compiled(torch.rand(6, 8, requires_grad=True), layer)[0].sum().backward()
            assert counters["aot_autograd"][outcome] == 1
            torch._dynamo.reset()


def test_a_changed_custom_operation_is_traced_again(tmp_path: Path) -> None:
    """The compiler's cache knows such an operation by its name: it returned the gradients of the code before."""
    prepare_compiler()
    assert torch.compiler.config.cache_key_tag == source_hash(Path(engine.__file__).parent)
    changed = shutil.copytree(Path(engine.__file__).parent, tmp_path / "engine")
    (changed / "model/float8.py").write_text("# another backward\n")
    assert source_hash(changed) != torch.compiler.config.cache_key_tag
