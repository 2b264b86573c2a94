"""Updates of the policy: packed batches from groups, with advantages and weights of the whole step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vidqa.engine.data.collate import Batch, Collator
from vidqa.engine.data.dataloader import Step
from vidqa.engine.data.host_to_device import BatchSender
from vidqa.engine.data.prefetch import LoadedBatch
from vidqa.engine.distributed import WHOLE, World
from vidqa.engine.rl.rollout import Group, advantages
from vidqa.engine.training.objectives import PolicyGradient
from vidqa.families import VisionSizes
from vidqa.planning.budget.params import ADAPTER
from vidqa.planning.packing import plan_packs
from vidqa.planning.prefix_sharing import Workload, group_tokens, groups_within_budget, relative_cost, workload
from vidqa.planning.rollouts import CompletionSample, completion_sample
from vidqa.planning.samples import Planner
from vidqa.spec.models import GrpoSpec

VALUES = ("advantage", "rollout", "weight")  # of every completion, for the objective
FEW_BITS = 3  # see `attention.segments_of`: packs of rollouts have other shapes in every step


def token_weights(
    lengths: Sequence[int], loss_type: str, tokens: int, completions: int, divisor: int | None
) -> list[float]:
    """The weight of each token for completions of these `lengths`, in a step with `tokens` trained tokens and
    `completions` over all ranks. It is multiplied by `tokens`, by which the learner divides."""
    if loss_type == "token-mean":
        return [1.0] * len(lengths)
    if loss_type == "seq-mean-token-mean":
        return [tokens / (completions * max(length, 1)) for length in lengths]
    return [tokens / completions / (divisor or 1)] * len(lengths)


class UpdateCollator(Collator):
    """Builds batches of prompts with completions from their token ids."""

    def _encoded(self, sample: Any) -> tuple[np.ndarray, np.ndarray]:
        ids = sample.token_ids.astype(np.int64)
        return ids, np.arange(len(ids)) >= len(ids) - sample.supervised

    def _values(self, placed: Any, learns: np.ndarray) -> dict[str, torch.Tensor]:
        """The values of a pack. An empty pack (of a rank without groups) still has all names of the objective."""
        return super()._values(placed, learns) if placed else {name: torch.zeros(0) for name in VALUES}


@dataclass(frozen=True)
class PackedUpdate:
    """This rank's packs of one update, equally many on every rank: indices of `samples`."""

    samples: list[CompletionSample]
    groups: list[Group]  # the group of each sample
    packs: list[list[int]]
    tokens: int  # trained tokens over all ranks
    work: list[Workload]  # of this rank


class UpdatePlanner:
    """Builds the steps of the learner from groups. `pack_tokens` is the budget of a pack."""

    def __init__(
        self,
        spec: GrpoSpec,
        planner: Planner,
        sizes: VisionSizes,
        objective: PolicyGradient,
        world: World,
        pack_tokens: int,
    ) -> None:
        self.policy, self.world, self.pack_tokens = spec.train.train_policy, world, pack_tokens
        self.masks_truncated = spec.engine.truncated == "mask"
        self.collator = UpdateCollator(
            planner, sizes, world.device.type, share=True, values=objective.token_values, context=WHOLE
        )
        if world.device.type == "cuda":
            self.collator.count_bits = FEW_BITS
        self.sender = BatchSender(world.device)
        self.objective = objective

    def plan(self, groups: Sequence[Group]) -> PackedUpdate:
        """The samples and packs of one update; `groups` are this rank's. Every rank takes part."""
        owners = [(group, drawn) for group in groups for drawn in group.drawn]
        trains = [not (self.masks_truncated and drawn.is_truncated) for _, drawn in owners]
        lengths = [len(drawn.token_ids) for _, drawn in owners]
        trained = sum(length for length, is_trained in zip(lengths, trains, strict=True) if is_trained), sum(trains)
        tokens, completions = (sum(counts) for counts in zip(*self.world.gather(trained), strict=True))
        divisor = self.policy.unbiased_loss_max_tokens
        weights = token_weights(lengths, self.policy.loss_type, tokens, max(completions, 1), divisor)
        divided = not self.policy.unbiased_advantage
        shares = [share for group in groups for share in advantages(group.rewards, divided=divided)]
        samples = [
            completion_sample(
                group.question.sample,
                group.question.prompt_ids,
                drawn.token_ids,
                str(group.question.slot),
                trains=is_trained,
                values={
                    "advantage": np.full(length, share),
                    "rollout": drawn.logprobs,
                    "weight": np.full(length, weight),
                },
            )
            for (group, drawn), is_trained, length, share, weight in zip(
                owners, trains, lengths, shares, weights, strict=True
            )
        ]
        grouped = groups_within_budget(range(len(samples)), samples, self.collator.padded, self.pack_tokens)
        unit_lengths = [group_tokens(unit, samples, self.collator.padded) for unit in grouped]
        work = [workload(unit, samples) for unit in grouped]
        (packs,) = plan_packs(
            range(len(grouped)), unit_lengths, [relative_cost(one) for one in work], 1, self.pack_tokens
        )
        packs += [[]] * (max(self.world.gather(len(packs))) - len(packs))
        places = [[number for place in pack for number in grouped[place]] for pack in packs]
        return PackedUpdate(samples, [group for group, _ in owners], places, tokens, work)

    def step(self, number: int, packed: PackedUpdate) -> Step:
        """The learner's step for an update."""
        return Step(number, self.batches(packed), len(packed.packs), float(max(packed.tokens, 1)))

    def batches(self, packed: PackedUpdate) -> Iterator[LoadedBatch]:
        """The batches of the packs on the device, each built during the computation of the previous one."""
        with ThreadPoolExecutor(1, "collating") as collating:
            sent = [collating.submit(self._sent, packed, packed.packs[0])]
            for pack in [*packed.packs[1:], None]:
                ready = sent.pop().result()
                if pack is not None:
                    sent.append(collating.submit(self._sent, packed, pack))
                yield LoadedBatch(ready.received(), [])

    def _sent(self, packed: PackedUpdate, pack: list[int]) -> Any:
        samples = [packed.samples[number] for number in pack]
        frames = [packed.groups[number].question.frames for number in pack]
        return self.sender.send(self.collator(pack, samples, frames))  # type: ignore[arg-type]

    def with_values(self, packed: PackedUpdate, name: str, model: Any) -> PackedUpdate:
        """The same packs with the log-probabilities of `model` as the value `name`; every rank takes part. Gradients
        are recorded and dropped: without them a compiled model runs other kernels, whose rounding would make ratios of
        an unchanged model differ from 1."""
        samples = list(packed.samples)
        for loaded in self.batches(packed):
            batch: Batch = loaded.batch
            logprobs = self.objective.log_probabilities(model, batch)[0].detach().cpu().numpy()
            owners = batch.owner_N.cpu().numpy()
            for place, number in enumerate(batch.samples):
                sample = samples[number]
                value = np.zeros(sample.length, np.float32)
                value[sample.length - sample.supervised :] = logprobs[owners == place]
                samples[number] = replace(sample, values={**sample.values, name: value})
        return replace(packed, samples=samples)


@contextmanager
def without_adapters(model: Any) -> Iterator[Any]:
    """Disable LoRA's adapters inside the block: the model is then the initial model of the training."""
    from peft.tuners.lora import LoraLayer  # with bitsandbytes beside it, importing it takes seconds

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    scales = [layer.scaling[ADAPTER] for layer in layers]
    for layer in layers:
        layer.scaling[ADAPTER] = 0.0
    try:
        yield model
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling[ADAPTER] = scale
