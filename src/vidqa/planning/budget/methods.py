"""Capacity of a GPU for each training method: the longest sample, the speed, and the time that saving memory costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from vidqa.families import Sizes, Tensor
from vidqa.planning.budget.autotune import Forecast, least_policy, slowness
from vidqa.planning.budget.memory import (
    GIB,
    MemoryPolicy,
    MicroStep,
    TrainingSetup,
    allowed_recompute,
    allowed_reshard,
    fits,
    moments_bytes,
    peak_memory,
    state_bytes,
    training_setup,
)
from vidqa.planning.budget.params import ParamCounts, count_params, parameters
from vidqa.planning.budget.speed import Gpu, efficiency, flops_of, recomputed_flops_share
from vidqa.planning.prefix_sharing import Workload
from vidqa.spec.keys import with_values
from vidqa.spec.models import TrainSpec

LENGTHS = tuple(1024 * 2**power for power in range(8))  # tokens of a sample
PACK, ANSWER = 8192, 64  # tokens of a pack whose speed is estimated; supervised tokens of each sample
OFFLOADED_PACK = 32_768  # tokens of a step with one pack if the weights are copied from the host for each
FIRST_OF_BITSANDBYTES = (7, 5)  # lowest compute capability of its kernels
PCIE, HOST = 25e9, 50e9  # bytes/s of copies to a GPU, and of updates on the host
# Spec keys of each method, the fastest first within full training and within LoRA.
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, AdamW8bit": {"train.optm_name": "AdamW8bit"},
    "full, AdamW8bit and offload": {"train.optm_name": "AdamW8bit", "train.fsdp_offload": True},
    "LoRA": {"policy.lora": {}},
    "LoRA, fp8 base": {"policy.lora": {}, "policy.quantization": "fp8"},
    "LoRA, nf4 base": {"policy.lora": {}, "policy.quantization": "nf4"},
}
USUAL = {"policy.lora": None, "policy.quantization": None, "train.optm_name": "AdamW", "train.fsdp_offload": False}


@dataclass(frozen=True)
class Fit:
    """The capacity of a GPU for one method: the longest sample that fits alone in a pack (0: not even 1,024 tokens),
    tokens per second and GPU in packs of 8,192, with offload of 32,768 (None if the GPU is not known), and GiB of host
    memory for offloaded tensors."""

    method: str
    longest: int
    tokens_per_s: float | None
    host_gib: float


def fitting_methods(
    spec: TrainSpec, sizes: Sizes, tensors: Sequence[Tensor], limit_gib: float, card: Gpu | None, name: str = ""
) -> Iterator[Fit]:
    """Estimate every method on a GPU with `limit_gib` of usable memory; all other settings are the spec's."""
    for method, keys in METHODS.items():
        lora = spec.policy.lora.model_dump() if spec.policy.lora and "policy.lora" in keys else None
        changed = with_values(spec, USUAL | keys | ({"policy.lora": lora} if lora else {}))
        model = count_params(sizes, parameters(tensors, changed.policy))
        least = training_setup(changed, least_policy(changed, model))
        peaks = {tokens: peak_memory(model, least, _micro_step(model, tokens)).peak_gib for tokens in LENGTHS}
        longest = max((tokens for tokens, peak_gib in peaks.items() if fits(peak_gib, limit_gib)), default=0)
        pack = min(OFFLOADED_PACK if least.cpu_offload else PACK, longest)
        speed = _speed(changed, model, pack, limit_gib, card, name) if card and longest else None
        yield Fit(method, longest, speed, host_bytes(model, least) / GIB)


def host_bytes(model: ParamCounts, setup: TrainingSetup) -> float:
    """Bytes of host memory for weights, gradients and moments of all ranks; 0 if they are on the GPU."""
    gradients = setup.master_bytes * model.every.trained
    return state_bytes(model.every, setup) + gradients if setup.cpu_offload else 0.0


def _micro_step(model: ParamCounts, tokens: int) -> MicroStep:
    """A micro-step of video tokens, as the heaviest packs are."""
    return MicroStep(tokens, tokens * model.sizes.vision.merge**2, ANSWER, accumulates=True)


def _speed(spec: TrainSpec, model: ParamCounts, tokens: int, limit_gib: float, card: Gpu, name: str) -> float | None:
    """Tokens per second with the fastest recomputation that fits, in packs of `tokens` tokens; None if none fits."""
    pack = _micro_step(model, tokens)
    choices = product(allowed_reshard(spec), allowed_recompute(spec, model))
    policies = (MemoryPolicy(recompute, reshard) for reshard, recompute in choices)
    memories = ((policy, peak_memory(model, training_setup(spec, policy), pack)) for policy in policies)
    forecasts = [Forecast(memory, pack, policy) for policy, memory in memories if fits(memory.peak_gib, limit_gib)]
    if not forecasts:
        return None
    best = min(forecasts, key=lambda forecast: slowness(spec, model, forecast)).policy
    setup, recomputed = training_setup(spec, best), recomputed_flops_share(spec, model, best.recompute, pack)
    work = Workload(tokens, tokens**2, ANSWER, pack.patches, 0)
    reached = efficiency(model, replace(setup, lora=spec.policy.lora is not None), recomputed).on(name).mfu
    seconds = flops_of(spec, model).training_flops([work]) / (card.peak * reached)
    return tokens / (seconds + micro_step_seconds(model, setup, card) + step_seconds(model, setup))


def micro_step_seconds(model: ParamCounts, setup: TrainingSetup, card: Gpu) -> float:
    """Additional seconds of a micro-step: dequantizing the base twice, and copying weights and gradients to the GPU and
    back. No overlap with computation is assumed."""
    seconds = 0.0
    if setup.base_precision:
        read_and_written = setup.compute_bytes * 3 + 1  # codes, the weight, and the weight beside its adapter
        seconds += 2 * model.every.quantizable * read_and_written / card.bandwidth
    if setup.cpu_offload:
        seconds += model.every.trained * (2 * setup.master_bytes + setup.reduce_bytes) / setup.shard_ranks / PCIE
    return seconds


def step_seconds(model: ParamCounts, setup: TrainingSetup) -> float:
    """Additional seconds of a step if weights are in host memory: the host clips gradients and updates weights. Moments
    in 8 bits are copied to the GPU and back, where the weights are updated."""
    if not setup.cpu_offload:
        return 0.0
    weights = 3 * setup.master_bytes * model.every.trained
    moved = weights + 2 * moments_bytes(model.every, setup)
    return weights / HOST + moved / (PCIE if setup.moments_8bit else HOST)
