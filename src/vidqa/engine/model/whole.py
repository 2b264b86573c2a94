"""Operations that torch.compile is to leave whole, because what it would make of them is slower or larger.

Rows of 1152 numbers, the width of the 8B model's vision tower, take inductor's layer norm four times as long as
PyTorch's. GELU in the product before it saves a frozen tower writing and reading its widest tensor: half a percent of a
step with LoRA. And a part of a tensor that is kept for backward would keep the whole tensor.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def layer_norm(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Over the last dimension."""
    if torch.compiler.is_compiling():
        return _layer_norm(hidden, weight, bias, epsilon)[0]
    return F.layer_norm(hidden, hidden.shape[-1:], weight, bias, epsilon)


@torch.library.custom_op("vidqa::layer_norm", mutates_args=())
def _layer_norm(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, and the mean and inverse deviation of every row."""
    return torch.native_layer_norm(hidden, hidden.shape[-1:], weight, bias, epsilon)


@_layer_norm.register_fake
def _(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> Any:
    row = hidden.new_empty((*hidden.shape[:-1], 1), dtype=torch.float32 if hidden.is_cuda else hidden.dtype)
    return torch.empty_like(hidden), row, torch.empty_like(row)


@torch.library.custom_op("vidqa::layer_norm_backward", mutates_args=())
def _layer_norm_backward(
    pull: torch.Tensor, hidden: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of input, weight and bias."""
    kept = hidden, hidden.shape[-1:], mean, inverse, weight, weight  # a bias is only asked whether it is there
    return torch.ops.aten.native_layer_norm_backward(pull.contiguous(), *kept, [True, True, True])


@_layer_norm_backward.register_fake
def _(pull: torch.Tensor, hidden: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor) -> Any:
    return torch.empty_like(hidden), torch.empty_like(weight), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    hidden, weight, _, _ = inputs
    _, *of_rows = output
    ctx.save_for_backward(hidden, *of_rows, weight)


def _pull_back(ctx: Any, pull: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    return *_layer_norm_backward(pull, *ctx.saved_tensors), None


_layer_norm.register_autograd(_pull_back, setup_context=_keep)


@torch.library.custom_op("vidqa::linear_gelu", mutates_args=())
def linear_gelu(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU (its tanh form) of a linear layer's output, for CUDA; nothing is kept for backward."""
    return torch._addmm_activation(bias, hidden, weight.t(), use_gelu=True)


@linear_gelu.register_fake
def _(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return hidden.new_empty((hidden.shape[0], weight.shape[0]))


@torch.library.custom_op("vidqa::own", mutates_args=())
def own(part: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own."""
    return part.clone(memory_format=torch.contiguous_format)


@own.register_fake
def _(part: torch.Tensor) -> Any:
    return torch.empty_like(part, memory_format=torch.contiguous_format)
