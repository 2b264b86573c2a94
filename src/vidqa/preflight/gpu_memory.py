"""Whether a predicted peak fits into a GPU, for training and answering."""

from __future__ import annotations

from collections.abc import Callable

from vidqa.contract.problem import Problem
from vidqa.planning.budget.memory import fits
from vidqa.planning.budget.memory_constants import CONSTANTS
from vidqa.preflight._base import Context
from vidqa.preflight.gpus import least_memory
from vidqa.preflight.problems import MEMORY

NOTHING_HELPS = (
    "no change of the spec makes it fit: use GPUs with more memory, a smaller model, or fewer and smaller frames"
)
RAISE = "raise engine.gpu_memory_gib, which leaves the rest of the GPU to others"


def usable_memory(context: Context) -> float | None:
    """GiB that the job may take of the smallest GPU; None where that is not known."""
    engine = getattr(context.spec, "engine", None)  # an action of somebody else may have none
    has_gib, limit_gib = least_memory(context.gpus), getattr(engine, "gpu_memory_gib", None)
    return has_gib if has_gib is None or limit_gib is None else min(has_gib, limit_gib)


def too_much(context: Context, peak_gib: float, details: str, remedy: Callable[[float], str]) -> list[Problem]:
    """MEMORY if the peak does not fit: an error, or a warning if it may fit within the error of the prediction.
    `remedy` finds a change that fits a GPU of that many GiB; it is called only when needed."""
    has_gib, whole_gib = usable_memory(context), least_memory(context.gpus)
    if has_gib is None or whole_gib is None or fits(peak_gib, has_gib):
        return []
    advice = remedy(has_gib)
    if has_gib < whole_gib and fits(peak_gib, whole_gib):
        advice = RAISE if advice == NOTHING_HELPS else f"{RAISE}, or {advice}"
    message = (
        f"about {peak_gib:.1f} GiB, and {CONSTANTS.outside_gib:.0f} for CUDA, of {has_gib:.1f} GiB a GPU; {details}"
    )
    sure = peak_gib + CONSTANTS.outside_gib > has_gib
    return [MEMORY.at("GPU memory", message, advice, severity="error" if sure else "warning")]
