"""The memory policy of a training on its own samples: the fastest one that fits, of those that its spec allows.

Two things are chosen together: the tokens of a pack (where engine.pack_tokens is unset), and what backward recomputes.
Smaller packs keep fewer activations, at little cost while they fill a GPU; recomputation costs FLOPs.
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

MAX_SAMPLES = 20_000  # whose packs are made; the steps beyond them are like the others
PACK_SHARES = (1.0, 0.75, 0.5, 0.375, 0.25)  # packs that are tried, as shares of the largest
PACK_ROUNDING = 256  # tokens by which packs differ
MAX_PACK_TOKENS = 32_768  # tokens that a GPU has of a chosen pack: more are no faster
MAX_OFFLOADED_TOKENS = 131_072  # the same where every micro-step brings all weights to the GPU
# Tokens whose time a micro-step costs beside its own: launches, and kernels that are not full at their ends. Where
# layers are gathered for each micro-step, that has to be hidden behind it, too.
OVERHEAD_TOKENS: dict[Reshard, int] = {"never": 400, "layers": 1200, "always": 1600}
# The same where weights that train are in host memory: 12 bytes of each come or go at 25 GB/s, while an H100 computes 6
# operations of each for a token.
OFFLOAD_TOKENS = 30_000


@dataclass(frozen=True)
class Forecast:
    """The heaviest micro-step of a run, and the memory that one GPU needs for it, or for validation's answers.
    `reserved_gib` are for something else that has a fixed size, such as the rollouts of reinforcement learning."""

    memory: TrainingMemory
    micro_step: MicroStep
    policy: MemoryPolicy
    reserved_gib: float = 0.0

    @property
    def peak_gib(self) -> float:
        return self.memory.peak_gib + self.reserved_gib

    def fits(self, memory_gib: float) -> bool:
        """Whether all of it fits into a GPU: what is predicted with the margin of `memory.fits`."""
        return fits(self.memory.peak_gib, memory_gib - self.reserved_gib)


class Packing:
    """The packs of planned samples. `steps_of` gives the steps that a pack budget makes."""

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
        """Tokens of the packs that are tried, the largest first; None where the spec decides."""
        engine = spec.engine
        # Small packs would repeat a video for its questions; completions of one question are one group.
        shares = engine.share_video_prefix and not isinstance(spec, GrpoSpec)
        if not engine.packing or engine.pack_tokens is not None or shares:
            return [None]
        longest, budget = (steps := self.steps_of(None)).longest, steps.budget
        most = MAX_OFFLOADED_TOKENS if _moves_weights(spec) else MAX_PACK_TOKENS
        largest = max(longest, min(budget, most * spec.policy.parallelism.cp_size))
        rounded = {int(largest * share) // PACK_ROUNDING * PACK_ROUNDING for share in PACK_SHARES}
        return sorted({max(longest, tokens) for tokens in rounded}, reverse=True)


def heaviest_micro_steps(steps: Steps, total_steps: int) -> list[MicroStep]:
    """The micro-steps that may be the heaviest on a GPU, over all ranks of the first steps: of those with equal tokens
    and patches one, and none that has less of everything than another."""
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
    """The memory of a TrainSpec. Of what the spec leaves open the fastest that fits into `memory_gib` beside what is
    reserved; where nothing fits or the memory is not known, the one that takes least, in the smallest packs."""
    fitting = [] if memory_gib is None else list(_fitting(spec, model, packing, memory_gib - reserved_gib))
    if fitting:
        best = min(fitting, key=partial(slowness, spec, model))
    else:
        least = replace(least_policy(spec, model), pack_tokens=packing.sizes(spec)[-1])
        best = _heaviest(spec, model, packing, least)
    return replace(best, reserved_gib=reserved_gib)


def least_policy(spec: TrainSpec, model: ParamCounts) -> MemoryPolicy:
    """The policy of least memory, in packs as the spec says: everything recomputed, all weights freed."""
    return MemoryPolicy(allowed_recompute(spec, model)[-1], allowed_reshard(spec)[-1])


def _fitting(spec: TrainSpec, model: ParamCounts, packing: Packing, memory_gib: float) -> Iterator[Forecast]:
    """For every pack size and reshard mode the fitting policy of least recomputation. Sizes end where nothing has to
    be recomputed: smaller packs would be slower."""
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
    overhead = OVERHEAD_TOKENS[policy.reshard] + OFFLOAD_TOKENS * _moves_weights(spec)
    return (1 + recomputed) * (1 + overhead / max(pack.tokens, 1))


def _moves_weights(spec: TrainSpec) -> bool:
    """Whether every micro-step moves the weights between host and GPU; an adapter's are few."""
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
    """The validation samples that a TrainSpec's validation answers; none where it does not."""
    return samples[: spec.engine.validation_generate] if spec.validation.enable else ()


def generation_bytes(spec: TrainSpec, model: ParamCounts, setup: TrainingSetup, answered: Sequence[Sample]) -> float:
    """Peak bytes beside weights and optimizer while validation generates; 0 where it does not. The whole model lies on
    every GPU in compute precision, and one sample is answered at a time."""
    sizes, most = {(sample.length, sample.patches) for sample in answered}, spec.engine.validation_max_tokens
    # Where nothing is sharded, frozen weights are computed with where they lie.
    gathered = setup.compute_bytes * (model.every.trained if setup.shard_ranks == 1 else model.every.every)
    peaks = []
    for length, patches in sizes:
        answering = AnsweringSetup("transformers", setup.compute_bytes, 1, length + most, most)
        memory = answering_memory(model.sizes, 0, answering, Reading(1, length, length, patches), None)
        peaks.append(gathered + getattr(memory, memory.moment))
    return max(peaks, default=0.0)
