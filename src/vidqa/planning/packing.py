"""Samples of every optimizer step, and their packing into micro-steps on ranks.

A step is a fixed set of samples, chosen by (seed, epoch, step) alone. Packs only spread that set over ranks and
micro-steps: bins of a token budget, balanced by cost. So another number of ranks takes the same steps, and the whole
state of the data loader is one integer. `Steps` combines both; it depends on the spec and the planned samples alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from vidqa.planning.pairs import PairSample
from vidqa.planning.prefix_sharing import (
    PrefixGroup,
    group_tokens,
    groups_within_budget,
    max_tokens,
    prefix_groups,
    relative_cost,
    workload,
)
from vidqa.planning.samples import Sample
from vidqa.spec import effective_batch
from vidqa.spec.models import TrainSpec

ALIGN = {"cpu": 8, "cuda": 64}  # samples are padded to a multiple of this many tokens
EPOCHS_CACHED = 4  # the dataloader is ahead of the training


def padded_length(length: int, device_type: str) -> int:
    """Tokens of a padded sample in a pack."""
    align = ALIGN[device_type]
    return -(-length // align) * align


@dataclass(frozen=True)
class StepOrder:
    """The samples of every step of a run: `samples` in all, `batch` of them per step. `together` holds groups of
    samples that follow each other in every epoch; it covers all samples. None: no groups."""

    samples: int
    batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True
    together: tuple[tuple[int, ...], ...] | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.samples // self.batch if self.drop_last else -(-self.samples // self.batch)

    def step(self, number: int) -> list[int]:
        """Sample numbers of the optimizer step `number`, counted from 0 over all epochs."""
        epoch, within = divmod(number, self.steps_per_epoch)
        return self._epoch(epoch)[within * self.batch : (within + 1) * self.batch].tolist()

    @cached_property
    def _epoch(self) -> Callable[[int], np.ndarray]:
        """Cached `_shuffled`: dataloader, training and metrics request each step, in several threads. Shuffling a
        million samples takes 16 ms, and joining their groups a third of a second."""
        return lru_cache(EPOCHS_CACHED)(self._shuffled)

    def _shuffled(self, epoch: int) -> np.ndarray:
        """Numbers of all samples in the order of an epoch."""
        groups = self.together
        order = np.arange(self.samples if groups is None else len(groups))
        if self.shuffle:
            np.random.Generator(np.random.PCG64([self.seed, epoch])).shuffle(order)
        if groups is not None:
            order = np.concatenate([groups[i] for i in order])
        return order


def plan_packs(
    chosen: Sequence[int], lengths: Sequence[int], costs: Sequence[float], ranks: int, budget: int
) -> list[list[list[int]]]:
    """Distribute the units `chosen` over [rank][micro-step] -> unit numbers; all ranks get equally many micro-steps.

    Longest processing time first into the fewest bins of `budget` tokens that hold all units. A unit longer than the
    budget gets its own bin. A bin may be empty if there are fewer units than ranks.
    """
    order = sorted(chosen, key=lambda i: (-costs[i], i))
    total = sum(min(lengths[i], budget) for i in order)
    micro_steps = max(1, -(-total // (budget * ranks)))
    while (bins := _fill(order, lengths, costs, micro_steps * ranks, budget)) is None:
        micro_steps += 1
    # Bins by descending cost, assigned to ranks in boustrophedon order: equal cost per rank and per micro-step.
    bins.sort(key=lambda bin_: -sum(costs[i] for i in bin_))
    packs: list[list[list[int]]] = [[] for _ in range(ranks)]
    for micro_step in range(micro_steps):
        dealt = bins[micro_step * ranks : (micro_step + 1) * ranks]
        for rank, bin_ in enumerate(dealt if micro_step % 2 == 0 else reversed(dealt)):
            packs[rank].append(sorted(bin_, key=lambda i: (-lengths[i], i)))
    return packs


def _fill(
    order: Sequence[int], lengths: Sequence[int], costs: Sequence[float], count: int, budget: int
) -> list[list[int]] | None:
    """Put each sample into the cheapest bin with room; None if no bin has room for a sample."""
    bins: list[list[int]] = [[] for _ in range(count)]
    used, load = np.zeros(count, dtype=np.int64), np.zeros(count)
    for i in order:
        room = (used + lengths[i] <= budget) | (used == 0)
        if not room.any():
            return None
        best = int(np.argmin(np.where(room, load, np.inf)))
        bins[best].append(i)
        used[best] += lengths[i]
        load[best] += costs[i]
    return bins


def plan_micro_batches(chosen: Sequence[int], ranks: int, mini_batch: int) -> list[list[list[int]]]:
    """Distribute samples without packing: each rank takes a contiguous run of them, `mini_batch` per micro-step."""
    per_rank = -(-len(chosen) // ranks)
    runs = [list(chosen[rank * per_rank : (rank + 1) * per_rank]) for rank in range(ranks)]
    micro_steps = -(-per_rank // mini_batch)
    return [[run[m * mini_batch : (m + 1) * mini_batch] for m in range(micro_steps)] for run in runs]


def pack_budget(spec: TrainSpec) -> int:
    """Tokens of a pack by a TrainSpec alone, if no memory policy chooses them."""
    return spec.engine.pack_tokens or spec.policy.model_max_length


class Steps:
    """The steps of a TrainSpec over `samples`, on `ranks` devices of one type ("cpu", "cuda"), in packs of
    `pack_tokens` (default: the spec's). A step has `batch` samples (default: the spec's effective batch)."""

    def __init__(
        self,
        spec: TrainSpec,
        samples: Sequence[Sample],
        ranks: int,
        device_type: str,
        pack_tokens: int | None = None,
        *,
        batch: int | None = None,
    ) -> None:
        loading = spec.train.train_policy
        self.spec, self.samples, self.ranks = spec, samples, ranks
        self.order = StepOrder(
            samples=len(samples),
            batch=batch or effective_batch(spec),
            seed=loading.dataloader_seed,
            shuffle=loading.dataloader_shuffle,
            drop_last=loading.dataloader_drop_last,
            together=tuple(prefix_groups(range(len(samples)), samples)) if spec.engine.share_video_prefix else None,
        )
        self.padded = partial(padded_length, device_type=device_type)
        self.budget = pack_tokens or pack_budget(spec)

    @property
    def longest(self) -> int:
        """Padded tokens of the longest sample."""
        return self.padded(max_tokens(self.samples))

    def packs(self, step: int) -> list[list[list[int]]]:
        """Sample numbers of a step, as [rank][micro-step]; the samples of a prefix group are adjacent."""
        if not self.spec.engine.packing:
            mini_batch = self.spec.train.train_policy.mini_batch
            return plan_micro_batches(self.order.step(step), self.ranks, mini_batch)
        groups = self.units(step)
        lengths = [group_tokens(unit, self.samples, self.padded) for unit in groups]
        costs = [relative_cost(workload(unit, self.samples)) for unit in groups]
        by_rank = plan_packs(range(len(groups)), lengths, costs, self.ranks, self.budget)
        return [[[number for place in pack for number in groups[place]] for pack in packs] for packs in by_rank]

    def units(self, step: int) -> list[PrefixGroup]:
        """The samples of a step over all ranks, grouped by shared prefix."""
        return self._units(self.order.step(step))

    def _units(self, numbers: Sequence[int]) -> list[PrefixGroup]:
        if not self.spec.engine.share_video_prefix:
            return [(number,) for number in numbers]
        return groups_within_budget(numbers, self.samples, self.padded, self.budget)

    def size(self, pack: Sequence[int]) -> tuple[int, int, int]:
        """Padded tokens, patches and supervised tokens of a pack, or the most in a rank's part if `cp_size` > 1."""
        groups = self._units(pack)
        works = [workload(unit, self.samples) for unit in groups]
        tokens = sum(group_tokens(unit, self.samples, self.padded) for unit in groups)
        patches, supervised = sum(work.patches for work in works), sum(work.supervised for work in works)
        if (ranks := self.spec.policy.parallelism.cp_size) > 1:
            tokens = -(-tokens // ranks)
            # All tokens of the part may be of videos, and frames at both ends are computed whole.
            in_media = max(1, sum(self.samples[unit[0]].media_tokens for unit in groups))
            frame = max((rows * columns for work in works for _, rows, columns in work.grids), default=0)
            patches = min(patches, tokens * patches // in_media + 2 * frame)
        return tokens, patches, min(supervised, tokens)

    def prefix_rows(self, pack: Sequence[int]) -> int:
        """Rows of prefixes that attention gathers: each prefix once, if several samples or both answers of a pair
        follow it."""
        firsts = [(self.samples[unit[0]], len(unit)) for unit in self._units(pack)]
        return sum(first.prefix for first, count in firsts if count > 1 or isinstance(first, PairSample))
