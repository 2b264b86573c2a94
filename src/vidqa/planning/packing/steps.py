"""The packs of every step of a run: a function of the spec and the planned samples alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from vidqa.planning.packing.packs import StepOrder, padded_length, plan_micro_batches, plan_packs
from vidqa.planning.packing.prefix_sharing import (
    PrefixGroup,
    group_tokens,
    groups_within_budget,
    max_tokens,
    prefix_groups,
    relative_cost,
    workload,
)
from vidqa.planning.pairs import PairSample
from vidqa.planning.samples import Sample
from vidqa.spec import effective_batch
from vidqa.spec.models import TrainSpec


def pack_budget(spec: TrainSpec) -> int:
    """Tokens of a pack by a TrainSpec alone, where no memory policy chooses them."""
    return spec.engine.pack_tokens or spec.policy.model_max_length


class Steps:
    """The steps of a TrainSpec over `samples`, on `ranks` devices of one type ("cpu", "cuda"), in packs of
    `pack_tokens`, or of what the spec says. A step has `batch` samples, by default the spec's effective batch."""

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
        """Tokens that the longest sample takes of a pack."""
        return self.padded(max_tokens(self.samples))

    def packs(self, step: int) -> list[list[list[int]]]:
        """[rank][micro-step] -> sample numbers of a step; those of one unit stand together."""
        if not self.spec.engine.packing:
            mini_batch = self.spec.train.train_policy.mini_batch
            return plan_micro_batches(self.order.step(step), self.ranks, mini_batch)
        groups = self.units(step)
        lengths = [group_tokens(unit, self.samples, self.padded) for unit in groups]
        costs = [relative_cost(workload(unit, self.samples)) for unit in groups]
        by_rank = plan_packs(range(len(groups)), lengths, costs, self.ranks, self.budget)
        return [[[number for place in pack for number in groups[place]] for pack in packs] for packs in by_rank]

    def units(self, step: int) -> list[PrefixGroup]:
        """The samples of a step over all ranks, those that share a prefix as one."""
        return self._units(self.order.step(step))

    def _units(self, numbers: Sequence[int]) -> list[PrefixGroup]:
        if not self.spec.engine.share_video_prefix:
            return [(number,) for number in numbers]
        return groups_within_budget(numbers, self.samples, self.padded, self.budget)

    def size(self, pack: Sequence[int]) -> tuple[int, int, int]:
        """Padded tokens, patches and supervised tokens of a pack; at most, of a rank's part of it."""
        groups = self._units(pack)
        works = [workload(unit, self.samples) for unit in groups]
        tokens = sum(group_tokens(unit, self.samples, self.padded) for unit in groups)
        patches, supervised = sum(work.patches for work in works), sum(work.supervised for work in works)
        if (ranks := self.spec.policy.parallelism.cp_size) > 1:
            tokens = -(-tokens // ranks)
            # All of them may be of videos, and a frame at either end is computed whole.
            in_media = max(1, sum(self.samples[unit[0]].media_tokens for unit in groups))
            frame = max((rows * columns for work in works for _, rows, columns in work.grids), default=0)
            patches = min(patches, tokens * patches // in_media + 2 * frame)
        return tokens, patches, min(supervised, tokens)

    def prefix_rows(self, pack: Sequence[int]) -> int:
        """Rows of prefixes that attention gathers, once for each group, for what stands behind them: several samples,
        or both answers of a pair."""
        firsts = [(self.samples[unit[0]], len(unit)) for unit in self._units(pack)]
        return sum(first.prefix for first, count in firsts if count > 1 or isinstance(first, PairSample))
