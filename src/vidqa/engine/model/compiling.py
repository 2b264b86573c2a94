"""Settings of torch.compile for a training: what backward keeps, and the processes that compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vidqa.engine.torch_private import mark_dynamic, set_up_compiler

COMPILERS = 8  # processes of each rank that compile kernels


def prepare_compiler() -> None:
    """Settings of this process, and the processes that compile kernels.

    Norms, activations and sums are computed again in backward rather than kept, whatever reads them: that costs under
    one percent of a step and halves the memory that activations take. Matrix products and attention are kept.

    The compiling processes take seconds to start, and until then kernels are compiled one by one. Every rank has its
    own, up to 32 if nobody limits them, which is too many beside decode workers.
    """
    set_up_compiler(COMPILERS)


def any_length(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that has one graph, whatever the first size of its tensors."""

    def called(hidden_TD: torch.Tensor, *others: Any) -> Any:
        for tensor in (hidden_TD, *others):
            if isinstance(tensor, torch.Tensor):
                mark_dynamic(tensor)
        return function(hidden_TD, *others)

    return called
