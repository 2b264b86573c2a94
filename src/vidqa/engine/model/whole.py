"""Operations that torch.compile is to leave whole, because what it would make of them is slower or larger.

GELU in the product before it saves a frozen tower writing and reading its widest tensor: half a percent of a step with
LoRA. A part of a tensor that is kept for backward would keep the whole tensor.
"""

from __future__ import annotations

from typing import Any

import torch


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
