"""The memory policy of a training on its own samples: the fastest one that fits, among those that its spec allows.

Two settings are chosen together: the tokens of a pack (if engine.pack_tokens is unset), and the recomputation. Smaller
packs keep fewer activations, at little cost while they fill a GPU; recomputation costs FLOPs.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from vidqa.planning.budget.answering import AnsweringSetup, Reading, answering_memory
from vidqa.planning.budget.memory import (
    MemoryPolicy,
    MicroStep,
    Reshard,
    TrainingMemory,
    TrainingSetup,
    allowed_recompute,
    allowed_reshard,
    fits,
    peak_memory,
    training_setup,
)
from vidqa.planning.budget.params import ParamCounts
from vidqa.planning.budget.speed import recomputed_flops_share
from vidqa.planning.packing import Steps
from vidqa.planning.samples import Sample
from vidqa.spec.models import GrpoSpec, TrainSpec

MAX_SAMPLES = 20_000  # limit on the samples that are packed for the estimate; later steps are alike
PACK_SHARES = (1.0, 0.75, 0.5, 0.375, 0.25)  # pack sizes to try, as shares of the largest
PACK_ROUNDING = 256  # step between pack sizes, in tokens
MAX_PACK_TOKENS = 32_768  # tokens per GPU of the largest chosen pack: larger ones are not faster
MAX_OFFLOADED_TOKENS = 131_072  # the same if every micro-step copies all weights to the GPU
# Overhead of a micro-step as an equivalent number of tokens: kernel launches, and kernels that are not full at their
# ends. If layers are gathered for each micro-step, that adds to it, with more than two ranks as much again and more
# (8B in full, benchmarks/README.md).
OVERHEAD_TOKENS = 400
GATHERING_TOKENS: dict[Reshard, int] = {"never": 0, "layers": 800, "always": 1200}
GATHERING_OF_MANY = 2.35  # the same with more than two ranks, relative to two
# The same if trainable weights are in host memory: 12 bytes of each are copied at 25 GB/s, while an H100 computes 6
# operations per token with it.
OFFLOAD_TOKENS = 30_000


@dataclass(frozen=True)
class Forecast:
    """The heaviest micro-step of a run, and the memory that one GPU needs for it, or for generation in validation.
    `reserved_gib` is memory of a fixed size for other purposes, such as the rollouts of reinforcement learning."""

    memory: TrainingMemory
    micro_step: MicroStep
    policy: MemoryPolicy
    reserved_gib: float = 0.0

    @property
    def peak_gib(self) -> float:
        return self.memory.peak_gib + self.reserved_gib

    def fits(self, memory_gib: float) -> bool:
        """Whether the prediction, with the margin of `memory.fits`, and the reserved memory fit into a GPU."""
        return fits(self.memory.peak_gib, memory_gib - self.reserved_gib)


class Packing:
    """The packs of planned samples. `steps_of` returns the Steps for a pack budget in tokens."""

    def __init__(
        self, steps_of: Callable[[int | None], Steps], total_steps: int, answered: Sequence[Sample] = ()
    ) -> None:
        self.steps_of, self.total, self.answered = steps_of, total_steps, answered
        self._heaviest: dict[int | None, list[MicroStep]] = {}

    def heaviest(self, pack_tokens: int | None) -> list[MicroStep]:
        if pack_tokens not in self._heaviest:
            self._heaviest[pack_tokens] = heaviest_micro_steps(self.steps_of(pack_tokens), self.total)
        return self._heaviest[pack_tokens]

    def sizes(self, spec: TrainSpec) -> Sequence[int | None]:
        """Pack sizes to try, in tokens, the largest first; None for the spec's own."""
        engine = spec.engine
        # Smaller packs would repeat a video for several of its questions; completions of one question are one group.
        shares = engine.share_video_prefix and not isinstance(spec, GrpoSpec)
        if not engine.packing or engine.pack_tokens is not None or shares:
            return [None]
        longest, budget = (steps := self.steps_of(None)).longest, steps.budget
        most = MAX_OFFLOADED_TOKENS if _moves_weights(spec) else MAX_PACK_TOKENS
        largest = max(longest, min(budget, most * spec.policy.parallelism.cp_size))
        rounded = {int(largest * share) // PACK_ROUNDING * PACK_ROUNDING for share in PACK_SHARES}
        return sorted({max(longest, tokens) for tokens in rounded}, reverse=True)


def heaviest_micro_steps(steps: Steps, total_steps: int) -> list[MicroStep]:
    """The micro-steps that may be the heaviest on a GPU, over all ranks of the first steps. Micro-steps that exceed
    another one in nothing (tokens, patches, supervised tokens, accumulation) are left out."""
    looked_at = min(total_steps, max(1, MAX_SAMPLES // steps.order.batch))
    micro_steps = {
        MicroStep(*steps.size(pack), accumulates=at > 0, prefix_rows=steps.prefix_rows(pack))
        for step in range(looked_at)
        for packs in steps.packs(step)
        for at, pack in enumerate(packs)
        if pack
    }
    heavy: list[MicroStep] = []
    for micro_step in sorted(micro_steps, key=_load, reverse=True):
        if not any(all(map(operator.ge, _load(other), _load(micro_step))) for other in heavy):
            heavy.append(micro_step)
    return heavy


def _load(micro_step: MicroStep) -> tuple[int, int, int, bool]:
    return micro_step.tokens, micro_step.patches, micro_step.supervised, micro_step.accumulates


def best_policy(
    spec: TrainSpec, model: ParamCounts, packing: Packing, memory_gib: float | None, reserved_gib: float = 0.0
) -> Forecast:
    """Forecast the memory of a TrainSpec with the fastest settings, among those that the spec leaves open, that fit
    into `memory_gib` minus `reserved_gib`; if none fit or it is None, with the least memory and the smallest packs."""
    fitting = [] if memory_gib is None else list(_fitting(spec, model, packing, memory_gib - reserved_gib))
    if fitting:
        best = min(fitting, key=partial(slowness, spec, model))
    else:
        least = replace(least_policy(spec, model), pack_tokens=packing.sizes(spec)[-1])
        best = _heaviest(spec, model, packing, least)
    return replace(best, reserved_gib=reserved_gib)


def least_policy(spec: TrainSpec, model: ParamCounts) -> MemoryPolicy:
    """The policy of least memory, with the spec's pack size: everything recomputed, all weights freed."""
    return MemoryPolicy(allowed_recompute(spec, model)[-1], allowed_reshard(spec)[-1])


def _fitting(spec: TrainSpec, model: ParamCounts, packing: Packing, memory_gib: float) -> Iterator[Forecast]:
    """The policy of least recomputation that fits, for every pack size and reshard mode. Stops at the first size
    without recomputation: smaller packs would be slower."""
    choices, reshards = allowed_recompute(spec, model), allowed_reshard(spec)
    for pack_tokens, reshard in product(packing.sizes(spec), reshards):

        def forecast_at(number: int, pack_tokens: int | None = pack_tokens, reshard: Reshard = reshard) -> Forecast:
            return _heaviest(spec, model, packing, MemoryPolicy(choices[number], reshard, pack_tokens))

        number = bisect_left(range(len(choices)), True, key=lambda at: forecast_at(at).fits(memory_gib))
        if number < len(choices):
            yield forecast_at(number)
        if number == 0 and reshard == reshards[0]:
            return


def slowness(spec: TrainSpec, model: ParamCounts, forecast: Forecast) -> float:
    """Time of a token, relative to a token of an endless pack without recomputation."""
    policy, pack = forecast.policy, forecast.micro_step
    recomputed = recomputed_flops_share(spec, model, policy.recompute, pack)
    has_many = training_setup(spec, policy).shard_ranks > 2
    gathering = GATHERING_TOKENS[policy.reshard] * (GATHERING_OF_MANY if has_many else 1)
    overhead = OVERHEAD_TOKENS + gathering + OFFLOAD_TOKENS * _moves_weights(spec)
    return (1 + recomputed) * (1 + overhead / max(pack.tokens, 1))


def _moves_weights(spec: TrainSpec) -> bool:
    """Whether every micro-step copies the weights between host and GPU; those of an adapter are negligible."""
    return spec.train.fsdp_offload and spec.policy.lora is None


def _heaviest(spec: TrainSpec, model: ParamCounts, packing: Packing, policy: MemoryPolicy) -> Forecast:
    setup = training_setup(spec, policy)
    generation = generation_bytes(spec, model, setup, packing.answered)
    forecasts: Iterable[Forecast] = (
        Forecast(replace(peak_memory(model, setup, one), generation=generation), one, policy)
        for one in packing.heaviest(policy.pack_tokens)
    )
    return max(forecasts, key=lambda one: one.memory.peak_gib)


def answered_samples(spec: TrainSpec, samples: Sequence[Sample]) -> Sequence[Sample]:
    """The validation samples for which validation generates answers; empty if it generates none."""
    return samples[: spec.engine.validation_generate] if spec.validation.enable else ()


def generation_bytes(spec: TrainSpec, model: ParamCounts, setup: TrainingSetup, answered: Sequence[Sample]) -> float:
    """Peak bytes beside weights and optimizer while validation generates; 0 if it does not. Every GPU holds the whole
    model in compute precision and answers one sample at a time."""
    sizes, most = {(sample.length, sample.patches) for sample in answered}, spec.engine.validation_max_tokens
    # Without sharding, frozen weights are used in place.
    gathered = setup.compute_bytes * (model.every.trained if setup.shard_ranks == 1 else model.every.every)
    peaks = []
    for length, patches in sizes:
        answering = AnsweringSetup("transformers", setup.compute_bytes, 1, length + most, most)
        memory = answering_memory(model.sizes, 0, answering, Reading(1, length, length, patches), None)
        peaks.append(gathered + getattr(memory, memory.moment))
    return max(peaks, default=0.0)
