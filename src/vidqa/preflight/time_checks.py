"""Time: GPU hours and decoding hours of a training, from its work and the speed of measured ones; time to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vidqa import spec
from vidqa.core.problem import Problem
from vidqa.planning.budget.autotune import least_policy
from vidqa.planning.budget.memory import (
    MemoryPolicy,
    MicroStep,
    ParamCounts,
    TrainingSetup,
    read_memory_policy,
    training_setup,
)
from vidqa.planning.budget.methods import micro_step_seconds, step_seconds
from vidqa.planning.budget.speed import START_S, FlopsModel, Gpu, efficiency, flops_of, recomputed_flops_share
from vidqa.planning.packing import Steps, pack_budget
from vidqa.planning.prefix_sharing import workload
from vidqa.planning.rollouts import step_time
from vidqa.planning.samples import Sample
from vidqa.preflight.answering_checks import answering_time
from vidqa.preflight.gpu_checks import NONE_HERE
from vidqa.preflight.gpus import card_of
from vidqa.preflight.inputs import DataInputs, RunInputs, Skip
from vidqa.spec.models import GrpoSpec, TrainSpec

MOST_STEPS = 200  # whose work is summed; the others are like them


def time(inputs: DataInputs) -> list[Problem]:
    """Estimate the hours of the job and of decoding."""
    train_spec = inputs.training
    if train_spec is None and inputs.declared_action.answering:
        inputs.facts["time"] = answering_time(inputs, _card(inputs)[1])
        return []
    if train_spec is None:
        raise Skip("only a training and answering are estimated")
    samples, total = inputs.training_steps(train_spec)
    inputs.facts["time"] = facts = _decoding(inputs, train_spec)
    name, card = _card(inputs)
    model = inputs.memory_model(train_spec)
    flops = flops_of(train_spec, model)
    policy, done_again = _memory_policy(inputs, train_spec, model)
    setup = training_setup(train_spec, policy)
    reached = efficiency(model, setup, done_again).on(name)
    if isinstance(train_spec, GrpoSpec):
        step = step_time(train_spec, model, samples, flops, card, reached.mfu)
        computing = step.seconds * total / 3600
        facts |= {
            "step_s": round(step.seconds, 2),
            "rollout_s": round(step.rollout_s, 2),
            "update_s": round(step.update_s, 2),
            "answer_tokens": step.answer,
        }
    else:
        work = _training(train_spec, samples, total, flops) + _validation(inputs, train_spec, total, flops)
        computing = work / (card.peak * reached.mfu) / inputs.processes / 3600
        pack_tokens = inputs.facts.get("memory", {}).get("pack_tokens")
        steps = Steps(train_spec, samples, spec.data_ranks(train_spec), "cuda", pack_tokens)
        for_memory = _for_memory(steps, model, setup, total, card) / 3600
        facts["memory_hours"] = round(for_memory, 3)
        computing += for_memory
    hours = START_S / 3600 + max(computing, facts.get("decode_hours_per_pass", 0))
    facts |= {
        "hours": round(hours, 3),
        "gpu_hours": round(hours * inputs.processes, 3),
        "start_s": START_S,
        "mfu": round(reached.mfu, 3),
        "mfu_is": reached.source,
        "gpu": name,
    }
    return []


def _card(inputs: RunInputs) -> tuple[str, Gpu]:
    """The name and the data sheet of the job's GPU; of a declared one, the usual card of its architecture."""
    if not inputs.gpus:
        raise Skip(NONE_HERE)
    gpu, (name, card) = inputs.gpus[0], card_of(inputs.gpus)
    if card is None:
        raise Skip(f"the speed of {gpu.name} ({gpu.arch}) is not known")
    return name, card


def _memory_policy(inputs: RunInputs, train_spec: TrainSpec, model: ParamCounts) -> tuple[MemoryPolicy, float]:
    """What the check of memory found, and the share of FLOPs done again; without it, the policy of least memory."""
    if memory := inputs.facts.get("memory"):
        return read_memory_policy(memory, model.sizes), memory["done_again"]
    least, pack = least_policy(train_spec, model), MicroStep(pack_budget(train_spec), patches=0)
    return least, recomputed_flops_share(train_spec, model, least.recompute, pack)


def _training(train_spec: TrainSpec, samples: Sequence[Sample], total: int, flops: FlopsModel) -> float:
    """FLOPs of all steps, extrapolated from the first ones."""
    steps = Steps(train_spec, samples, spec.data_ranks(train_spec), "cuda")
    looked_at = min(total, MOST_STEPS, steps.order.steps_per_epoch)
    done = sum(flops.training_flops(workload(unit, samples) for unit in steps.units(step)) for step in range(looked_at))
    return done / looked_at * total


def _for_memory(steps: Steps, model: ParamCounts, setup: TrainingSetup, total: int, card: Gpu) -> float:
    """Seconds of all steps that a base in few bits and weights in host memory cost."""
    if not (setup.precision or setup.offloads):
        return 0.0
    looked_at = min(total, MOST_STEPS, steps.order.steps_per_epoch)
    micro_steps = sum(len(steps.packs(step)[0]) for step in range(looked_at)) / looked_at
    return total * (micro_steps * micro_step_seconds(model, setup, card) + step_seconds(model, setup))


def _validation(inputs: DataInputs, train_spec: TrainSpec, total: int, flops: FlopsModel) -> float:
    """FLOPs of all validations: each a third of training on the same tokens."""
    if not train_spec.validation.enable or "validation" not in inputs.planned:
        return 0.0
    held = inputs.usable("validation")
    valid = train_spec.validation
    times = (
        total // valid.freq if valid.freq else train_spec.train.epoch // (valid.freq_in_epoch or train_spec.train.epoch)
    )
    return max(1, times) * flops.training_flops(workload((number,), held) for number in range(len(held))) / 3


def _decoding(inputs: DataInputs, train_spec: TrainSpec) -> dict[str, Any]:
    """Hours of decoding every file once, from the measured seconds; other files count as the average."""
    timed = [row.decode_s for row in inputs.rows.values() if not row.code]
    if not timed:
        return {}
    core_s = sum(timed) / len(timed) * len(inputs.media)
    # GPUs that share a pack decode its videos each.
    workers = max(1, train_spec.train.train_policy.dataloader_num_workers) * spec.data_ranks(train_spec)
    return {
        "decode_core_hours": round(core_s / 3600, 3),
        "decode_hours_per_pass": round(core_s / workers / 3600, 3),
        "decoded_again_every_epoch": not train_spec.engine.frame_cache_gb,
    }
