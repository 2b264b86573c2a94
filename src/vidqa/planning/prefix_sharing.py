"""Prefix sharing: a pack holds a video once, and all questions about it behind it.

Eight short questions about a video of thousands of tokens then cost little more than one. Each question attends as if
it were alone (`model.attention.Suffixes`), so losses do not change; the order of samples does, because questions about
one video stay together in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vidqa.planning.samples import Sample
from vidqa.video.types import FramePlan

PrefixGroup = tuple[int, ...]  # numbers of samples that share a prefix, or of one sample
TOKEN_COST, PAIR_COST, PATCH_COST = 41.7e9, 0.885e6, 2.7e9  # FLOPs of Qwen3-VL-8B; only their ratio matters


@dataclass(frozen=True)
class Workload:
    """Counts that determine the FLOPs of a group, without padding. `pairs` are token pairs of causal attention, counted
    as whole squares; `patch_pairs` those inside each frame. `grids` are the media's, (t, h, w) in patches."""

    tokens: int
    pairs: int
    supervised: int
    patches: int
    patch_pairs: int
    grids: tuple[tuple[int, int, int], ...] = ()


def workload(unit: PrefixGroup, samples: Sequence[Sample]) -> Workload:
    first = samples[unit[0]]
    shared = first.prefix if len(unit) > 1 else 0
    own = [samples[number].length - shared for number in unit]
    return Workload(
        tokens=shared + sum(own),
        pairs=shared**2 + sum(2 * shared * length + length**2 for length in own),
        supervised=sum(samples[number].supervised for number in unit),
        **_media_workload(first.plans),
    )


def tower_workload(plans: Sequence[FramePlan]) -> Workload:
    """The workload of media in the vision tower alone."""
    return Workload(tokens=0, pairs=0, supervised=0, **_media_workload(plans))


def _media_workload(plans: Sequence[FramePlan]) -> dict[str, Any]:
    return {
        "patches": sum(plan.patches for plan in plans),
        "patch_pairs": sum(plan.grid[0] * (plan.grid[1] * plan.grid[2]) ** 2 for plan in plans),
        "grids": tuple(plan.grid for plan in plans),
    }


def relative_cost(work: Workload) -> float:
    """Relative time of a group: FLOPs linear in tokens and patches, and quadratic FLOPs of attention over tokens."""
    return TOKEN_COST * work.tokens + PAIR_COST * work.pairs + PATCH_COST * work.patches


def groups_within_budget(
    chosen: Iterable[int], samples: Sequence[Sample], padded: Callable[[int], int], budget: int
) -> list[PrefixGroup]:
    """The chosen samples in groups of at most `budget` tokens each; a longer sample is a group of its own."""
    groups: list[PrefixGroup] = []
    for group in prefix_groups(chosen, samples):
        unit: PrefixGroup = ()
        for number in group:
            if unit and group_tokens((*unit, number), samples, padded) > budget:
                groups.append(unit)
                unit = ()
            unit = (*unit, number)
        groups.append(unit)
    return groups


def group_tokens(unit: PrefixGroup, samples: Sequence[Sample], padded: Callable[[int], int]) -> int:
    """Tokens of a group in a pack: the padded prefix and the suffixes, or one padded sample."""
    if len(unit) == 1:
        return padded(samples[unit[0]].length)
    prefix = samples[unit[0]].prefix
    return padded(prefix) + sum(samples[number].length - prefix for number in unit)


def prefix_groups(numbers: Iterable[int], samples: Sequence[Sample]) -> list[PrefixGroup]:
    """Group samples by shared prefix, in the order of each group's first sample."""
    grouped: dict[object, list[int]] = {}
    for number in numbers:
        grouped.setdefault(samples[number].prefix_key or number, []).append(number)
    return [tuple(group) for group in grouped.values()]


def split_samples(samples: Sequence[Sample], ranks: int) -> list[list[Sample]]:
    """Distribute samples over ranks by `split_indices`."""
    held = list(samples)
    return [[held[number] for number in mine] for mine in split_indices(held, ranks)]


def split_indices(samples: Sequence[Sample], ranks: int) -> list[list[int]]:
    """Numbers of samples by rank, with equal cost: the most expensive group first, to the rank with the least cost.
    Each rank begins with its longest sample. Samples of one prefix stay together: a generator may compute it once."""
    groups = prefix_groups(range(len(samples)), samples)
    costs = [relative_cost(workload(unit, samples)) for unit in groups]
    dealt: list[list[PrefixGroup]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for i in sorted(range(len(groups)), key=lambda i: -costs[i]):
        rank = loads.index(min(loads))
        dealt[rank].append(groups[i])
        loads[rank] += costs[i]
    for mine in dealt:
        mine.sort(key=lambda unit: -max(samples[i].length for i in unit))
    return [[number for unit in mine for number in unit] for mine in dealt]


def max_tokens(samples: Iterable[Sample]) -> int:
    """Tokens of the longest sample; 0 if there is none."""
    return max((sample.length for sample in samples), default=0)
