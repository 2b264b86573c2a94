"""The memory of a training on its own samples: its heaviest packs, and which memory policy makes them fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vidqa.planning.budget.memory import (
    Memory,
    MemoryPolicy,
    MicroStep,
    Model,
    allowed_policies,
    fits,
    peak_memory,
    setup_of,
)
from vidqa.planning.packing.steps import Steps

MOST_SAMPLES = 20_000  # whose packs are made; the steps beyond them are like the others


@dataclass(frozen=True)
class Forecast:
    """The heaviest micro-step of a run, and the memory that one GPU needs for it."""

    memory: Memory
    micro_step: MicroStep
    policy: MemoryPolicy


def heaviest_micro_steps(steps: Steps, total_steps: int) -> list[MicroStep]:
    """The micro-steps that may be the heaviest, over all ranks of the first steps: of those with equal tokens and
    patches one, and none that has less of everything than another."""
    looked_at = min(total_steps, max(1, MOST_SAMPLES // steps.order.batch))
    found = {
        MicroStep(*steps.size(pack), again=at > 0)
        for step in range(looked_at)
        for packs in steps.packs(step)
        for at, pack in enumerate(packs)
        if pack
    }
    heavy: list[MicroStep] = []
    for micro_step in sorted(found, key=lambda one: (-one.tokens, -one.patches, -one.supervised, not one.again)):
        if not any(_covers(other, micro_step) for other in heavy):
            heavy.append(micro_step)
    return heavy


def _covers(heavy: MicroStep, micro_step: MicroStep) -> bool:
    more = (
        heavy.tokens >= micro_step.tokens
        and heavy.patches >= micro_step.patches
        and heavy.supervised >= micro_step.supervised
    )
    return more and heavy.again >= micro_step.again


def forecast(spec: Any, model: Model, found: Sequence[MicroStep], memory_gib: float | None) -> Forecast:
    """The memory of a TrainSpec. Of what the spec leaves open the fastest that fits into `memory_gib`; where nothing
    fits or the memory is not known, the one that takes least."""
    for policy in allowed_policies(spec):
        chosen = _heaviest(spec, model, found, policy)
        if memory_gib is not None and fits(chosen.memory.peak_gib, memory_gib):
            return chosen
    return chosen


def _heaviest(spec: Any, model: Model, found: Iterable[MicroStep], policy: MemoryPolicy) -> Forecast:
    setup = setup_of(spec, policy)
    each = (Forecast(peak_memory(model, setup, one), one, policy) for one in found)
    return max(each, key=lambda one: one.memory.peak_gib)
