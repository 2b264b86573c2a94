"""Settings of torch.compile for a training: what backward keeps, and the processes that compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.async_compile import maybe_warm_pool

COMPILERS = 8  # processes of each rank that compile kernels


def prepare_compiler() -> None:
    """Settings of this process, and the processes that compile kernels.

    Norms, activations and sums are computed again in backward rather than kept, whatever reads them: that costs under
    one percent of a step and halves the memory that activations take. Matrix products and attention are kept.

    The compiling processes take seconds to start, and until then kernels are compiled one by one. Every rank has its
    own, up to 32 if nobody limits them, which is too many beside decode workers.
    """
    functorch.aggressive_recomputation = True
    inductor.compile_threads = min(inductor.compile_threads or COMPILERS, COMPILERS)
    maybe_warm_pool()


def any_length(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that has one graph, whatever the first size of its tensors."""

    def called(hidden_TD: torch.Tensor, *others: Any) -> Any:
        for tensor in (hidden_TD, *others):
            if isinstance(tensor, torch.Tensor):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return function(hidden_TD, *others)

    return called
