"""Private names of PyTorch: each is where the engine looks for it, and none is used elsewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import torch

import vidqa.engine

ENGINE = Path(vidqa.engine.__file__).parent
NAMES = (
    "torch._scaled_mm",
    "torch._addmm_activation",
    "torch._foreach_mul_",
    "torch._dynamo.maybe_mark_dynamic",
    "torch._functorch.config.aggressive_recomputation",
    "torch._inductor.config.compile_threads",
    "torch._inductor.async_compile.maybe_warm_pool",
    "torch.distributed.checkpoint.filesystem.FileSystem",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset",
    "torch.distributed.tensor.DTensor._spec",
    "torch.optim.Adam._init_group",
    "torch.serialization._get_layout",
    "torch.utils._pytree.keystr",
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_leaves_with_path",
    "torch.utils._pytree.tree_map_only",
    "torch.utils._pytree.tree_unflatten",
)
OPERATORS = {  # and their first arguments, since they are called by position
    "_scaled_dot_product_cudnn_attention": "query key value attn_bias compute_log_sumexp dropout_p is_causal",
    "_scaled_dot_product_cudnn_attention_backward": "grad_out query key value out logsumexp philox_seed philox_offset "
    "attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p is_causal",
    "_flash_attention_forward": "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask",
    "_flash_attention_backward": "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p "
    "is_causal rng_state unused",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_is_where_it_was(name: str) -> None:
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            place = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            annotated = {**getattr(place, "__annotations__", {}), **dict.fromkeys(getattr(place, "__slots__", ()))}
            assert hasattr(place, part) or part in annotated, f"{name} has moved"
            place = getattr(place, part, None)
        return
    pytest.fail(f"{name} has moved")


@pytest.mark.parametrize("name", OPERATORS)
def test_a_private_operator_takes_what_it_took(name: str) -> None:
    expected = OPERATORS[name].split()
    arguments = getattr(torch.ops.aten, name).default._schema.arguments
    assert [argument.name for argument in arguments][: len(expected)] == expected


def test_the_optimizer_asks_for_lists_of_a_group() -> None:
    names = list(inspect.signature(torch.optim.Adam._init_group).parameters)
    assert names[:4] == ["self", "group", "params_with_grad", "grads"]


def test_private_names_are_used_in_one_module() -> None:
    wrong = []
    for path in sorted(ENGINE.rglob("*.py")):
        if path.name == "torch_private.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ""
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                name = next((name for name in names if name.startswith("torch.") and "._" in name), "")
            elif isinstance(node, ast.Attribute):
                text = ast.unparse(node)
                name = text if text.startswith("torch.") and "._" in text else ""
            if name:
                wrong.append(f"{path.relative_to(ENGINE)}:{node.lineno} {name}")
    assert wrong == []
