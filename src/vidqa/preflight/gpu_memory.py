"""Whether a predicted peak fits into a GPU, said alike of trainings and of answering."""

from __future__ import annotations

from collections.abc import Callable

from vidqa.contract.problem import Problem
from vidqa.planning.budget.memory import COUNTS, fits
from vidqa.preflight.problems import MEMORY

NOTHING_HELPS = (
    "no change of the spec makes it fit: use GPUs with more memory, a smaller model, or fewer and smaller frames"
)


def too_much(peak_gib: float, has_gib: float | None, details: str, remedy: Callable[[float], str]) -> list[Problem]:
    """MEMORY where the peak does not fit: an error where it cannot, a warning where the prediction may be wrong by as
    much. `remedy` finds what helps within a GPU's memory, in GiB; it is called only where something must."""
    if has_gib is None or fits(peak_gib, has_gib):
        return []
    message = f"about {peak_gib:.1f} GiB, and {COUNTS.outside_gib:.0f} for CUDA, of {has_gib:.1f} GiB a GPU; {details}"
    sure = peak_gib + COUNTS.outside_gib > has_gib
    return [MEMORY.at("GPU memory", message, remedy(has_gib), severity="error" if sure else "warning")]
