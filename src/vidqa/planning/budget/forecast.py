"""The memory of a training on its own samples: its heaviest packs, and what speed is given up so that they fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vidqa.planning.budget.memory import Load, Memory, Model, Thrift, allowed_thrift, fits, peak_memory, way_of
from vidqa.planning.packing.steps import Steps

MOST_SAMPLES = 20_000  # whose packs are made; the steps beyond them are like the others


@dataclass(frozen=True)
class Forecast:
    """The heaviest micro-step of a run, and the memory that one GPU needs for it."""

    memory: Memory
    load: Load
    thrift: Thrift


def loads(steps: Steps, total_steps: int) -> list[Load]:
    """The micro-steps that may be the heaviest, over all ranks of the first steps: of those with equal tokens and
    patches one, and none that has less of everything than another."""
    looked_at = min(total_steps, max(1, MOST_SAMPLES // steps.order.batch))
    found = {
        Load(*steps.size(pack), again=at > 0)
        for step in range(looked_at)
        for packs in steps.packs(step)
        for at, pack in enumerate(packs)
        if pack
    }
    heavy: list[Load] = []
    for load in sorted(found, key=lambda one: (-one.tokens, -one.patches, -one.supervised, not one.again)):
        if not any(_covers(other, load) for other in heavy):
            heavy.append(load)
    return heavy


def _covers(heavy: Load, load: Load) -> bool:
    more = heavy.tokens >= load.tokens and heavy.patches >= load.patches and heavy.supervised >= load.supervised
    return more and heavy.again >= load.again


def forecast(spec: Any, model: Model, found: Sequence[Load], memory_gib: float | None) -> Forecast:
    """The memory of a TrainSpec. Of what the spec leaves open the fastest that fits into `memory_gib`; where nothing
    fits or the memory is not known, the one that takes least."""
    for thrift in allowed_thrift(spec):
        chosen = _heaviest(spec, model, found, thrift)
        if memory_gib is not None and fits(chosen.memory.peak_gib, memory_gib):
            return chosen
    return chosen


def _heaviest(spec: Any, model: Model, found: Iterable[Load], thrift: Thrift) -> Forecast:
    way = way_of(spec, thrift)
    each = (Forecast(peak_memory(model, way, load), load, thrift) for load in found)
    return max(each, key=lambda one: one.memory.peak_gib)
