"""All private names of PyTorch that the engine uses; a test (`test_torch_private.py`) names each one that is missing.

The compiler's names are looked up at use: importing it takes seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.serialization import _get_layout
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_leaves_with_path, tree_map_only, tree_unflatten

__all__ = [
    "FileSystem",
    "TreeSpec",
    "compute_local_shape_and_global_offset",
    "keystr",
    "tree_flatten",
    "tree_leaves_with_path",
    "tree_map_only",
    "tree_unflatten",
]

COMPILERS = 8  # processes of each rank that compile kernels
GRAPHS = 64  # of one compiled function

# Attention.
CUDNN_FORWARD = torch.ops.aten._scaled_dot_product_cudnn_attention
CUDNN_BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
FLASH_FORWARD = torch.ops.aten._flash_attention_forward
FLASH_BACKWARD = torch.ops.aten._flash_attention_backward

# Products and optimizer.
scaled_mm = torch._scaled_mm
addmm_activation = torch._addmm_activation
foreach_mul_ = torch._foreach_mul_
to_int4pack = torch.ops.aten._convert_weight_to_int4pack
int4pack_mm = torch.ops.aten._weight_int4pack_mm

# Files of a checkpoint.
StorageInfo, MemFormatEncoding, get_layout = _StorageInfo, _MEM_FORMAT_ENCODING, _get_layout


def dtensor_like(tensor: DTensor, part: torch.Tensor) -> DTensor:
    """A DTensor like `tensor` with `part` as this rank's rows; `from_local` would move `part` to the mesh's device."""
    return DTensor(part, tensor._spec, requires_grad=False)


def any_length(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a compiled function so that it has one graph for any first size of its tensors."""

    def called(hidden_TD: torch.Tensor, *others: Any) -> Any:
        for tensor in (hidden_TD, *others):
            if isinstance(tensor, torch.Tensor):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return function(hidden_TD, *others)

    return called


def source_hash(engine: Path) -> str:
    """SHA-256 over the source files of the custom operations and kernels in the package `engine`."""
    paths = sorted(path for package in ("model", "kernels") for path in (engine / package).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def prepare_compiler() -> None:
    """Configure torch.compile for a training, and start the processes that compile kernels.

    Norms, activations and sums are always recomputed in backward instead of saved: that costs less than
    one percent of a step and halves the memory of activations. Matrix products and attention are saved.

    The compiling processes take seconds to start; until then kernels are compiled one by one. Every rank has its
    own, by default up to 32, which is too many beside decode workers.

    A function that is compiled as one graph ends the run at the default limit of 8 graphs. It has one for each
    combination of gradients, precision, adapter and quantization of its layers.

    Graphs with an autograd function of ours (adapters) are cached on disk, too. The cache's key is the traced graph,
    which has the body of such a function in it, but a custom operation only by name: after a change of its backward,
    gradients would be those of the cached graph. The sources of these operations are therefore part of the key.
    """
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.async_compile import maybe_warm_pool

    torch.compiler.config.cache_key_tag = source_hash(Path(__file__).parent)
    torch._dynamo.config.recompile_limit = GRAPHS
    functorch.aggressive_recomputation = True
    functorch.autograd_cache_allow_custom_autograd_functions = True
    inductor.compile_threads = min(inductor.compile_threads or COMPILERS, COMPILERS)
    maybe_warm_pool()
