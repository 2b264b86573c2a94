"""Which samples form an optimizer step, and where and in how many micro-steps they are computed.

A step is a fixed set of samples, chosen by (seed, epoch, step) alone. Packs only spread that set over ranks and
micro-steps: bins of a token budget, balanced by cost. So another number of ranks takes the same steps, and the whole
state of the data loader is one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

ALIGN = {"cpu": 8, "cuda": 64}  # samples are padded to a multiple of this many tokens
EPOCHS_CACHED = 4  # the dataloader is ahead of the training


def padded_length(length: int, device_type: str) -> int:
    """Tokens that a sample takes in a pack."""
    align = ALIGN[device_type]
    return -(-length // align) * align


@dataclass(frozen=True)
class StepOrder:
    """The samples of every step of a run: `samples` in all, `batch` of them a step. `together` holds groups of samples
    that follow each other in every epoch; it covers all samples, and None is each on its own."""

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
        """`_shuffled`, cached: dataloader, training and metrics request each step, in several threads. Shuffling a
        million samples takes 16 ms, and joining their groups a third of a second."""
        return lru_cache(EPOCHS_CACHED)(self._shuffled)

    def _shuffled(self, epoch: int) -> np.ndarray:
        """The numbers of all samples in the order of an epoch."""
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
    """Spread the units `chosen` over [rank][micro-step] -> unit numbers; every rank gets as many micro-steps.

    Longest processing time first into bins of `budget` tokens; the fewest bins that hold everything. A unit longer
    than the budget gets a bin of its own. A bin may be empty when there are fewer units than ranks.
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
    """Put each sample into the cheapest bin with room; None when a sample finds none."""
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
    """Without packing: each rank takes its run of the samples, `mini_batch` of them a micro-step."""
    per_rank = -(-len(chosen) // ranks)
    runs = [list(chosen[rank * per_rank : (rank + 1) * per_rank]) for rank in range(ranks)]
    micro_steps = -(-per_rank // mini_batch)
    return [[run[m * mini_batch : (m + 1) * mini_batch] for m in range(micro_steps)] for run in runs]
