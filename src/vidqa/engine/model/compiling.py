"""How torch.compile is set up for a training: what backward keeps, who compiles, and how norms read their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.async_compile import maybe_warm_pool
from torch._inductor.choices import InductorChoices
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V

COMPILERS = 8  # processes of each rank that compile kernels
WHOLE_ROW = 4096  # numbers of the widest row that a kernel holds at once; the width of the 8B decoder


class WholeRows(InductorChoices):
    """A norm whose kernel holds a row at once reads it once. PyTorch does so up to 1,024 numbers, and reads wider rows
    twice, in pieces; up to WHOLE_ROW, holding them gains almost one percent of a step."""

    @staticmethod
    def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
        along_rows = features.get_reduction_hint() == ReductionHint.INNER
        if along_rows and V.graph.sizevars.statically_known_leq(features.reduction_numel, WHOLE_ROW):
            return True
        return InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)

    @staticmethod
    def uuid() -> str:
        """Part of the key of compiled kernels that are kept on disk."""
        return f"{__name__}.WholeRows {WHOLE_ROW}"


def prepare_compiler() -> None:
    """Settings of this process, and the processes that compile kernels.

    Norms, activations and sums are computed again in backward rather than kept, whatever reads them: that costs under
    one percent of a step and halves the memory that activations take. Matrix products and attention are kept.

    The compiling processes take seconds to start, and until then kernels are compiled one by one. Every rank has its
    own, up to 32 if nobody limits them, which is too many beside decode workers.
    """
    functorch.aggressive_recomputation = True
    inductor.inductor_choices_class = WholeRows
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
