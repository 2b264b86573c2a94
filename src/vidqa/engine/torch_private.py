"""Every private name of PyTorch that the engine uses; a test (`test_torch_private.py`) fails by name when one moves.

The compiler's names are looked up when they are used: importing it takes seconds.
"""

from __future__ import annotations

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
    """`part` as this rank's rows of what `tensor` is; `from_local` would move it to the mesh's device."""
    return DTensor(part, tensor._spec, requires_grad=False)


def mark_dynamic(tensor: torch.Tensor) -> None:
    """The first size of `tensor` differs from call to call."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)


def set_up_compiler(processes: int) -> None:
    """Let backward compute again what is cheap, and start `processes` that compile kernels."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.async_compile import maybe_warm_pool

    functorch.aggressive_recomputation = True
    inductor.compile_threads = min(inductor.compile_threads or processes, processes)
    maybe_warm_pool()


def buffers(module: torch.nn.Module) -> dict[str, Any]:
    """The buffers of a module itself by name, those that are not saved among them."""
    return module._buffers
