"""Time: GPU hours and decoding hours of a training, from its work and the speed of measured ones; time to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vidqa import spec
from vidqa.core.problem import Problem
from vidqa.planning.budget.autotune import least_policy
from vidqa.planning.budget.flops import FlopsModel, flops_model, recomputed_flops_share
from vidqa.planning.budget.gpus import Gpu, find_gpu
from vidqa.planning.budget.memory import MicroStep, ParamCounts, offload_seconds, read_memory_policy, training_setup
from vidqa.planning.budget.mfu import START_S, Efficiency, efficiency
from vidqa.planning.budget.rollouts import step_time
from vidqa.planning.packing.prefix_sharing import workload
from vidqa.planning.packing.steps import Steps, pack_budget
from vidqa.planning.samples import Sample
from vidqa.preflight.answering_checks import answering_time
from vidqa.preflight.gpu_checks import NONE_HERE
from vidqa.preflight.inputs import DataInputs, RunInputs, Skip
from vidqa.spec.models import GrpoSpec, TrainSpec

NAMELESS = ("declared", "unknown")  # GPUs of which only the architecture may be known
MOST_STEPS = 200  # whose work is summed; the others are like them
# The usual GPU of an architecture, for declared GPUs, which have no name.
USUAL = {"sm_80": "A100", "sm_89": "L40S", "sm_90": "H100", "sm_100": "B200", "sm_120": "RTX PRO 6000"}


def time(inputs: DataInputs) -> list[Problem]:
    """Estimate the hours of the job and of decoding."""
    train_spec = inputs.training
    if train_spec is None and inputs.declared_action.answering:
        inputs.facts["time"] = answering_time(inputs, _card(inputs)[1])
        return []
    if train_spec is None:
        raise Skip("only a training and answering are estimated")
    samples = inputs.usable("train")
    total = spec.total_steps(train_spec, len(samples))
    if not total:
        raise Skip("there is no step to estimate")
    inputs.facts["time"] = facts = _decoding(inputs, train_spec)
    name, card = _card(inputs)
    model = inputs.memory_model(train_spec)
    flops = flops_model(
        model.sizes, vision_trains=model.vision.trained > 0, decoder_trains=train_spec.policy.lora is None
    )
    reached = _reached(inputs, train_spec, model).on(name)
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
        offload_s = _offload_s(inputs, train_spec, samples, model)
        computing = (work / (card.peak * reached.mfu) / inputs.processes + total * offload_s) / 3600
        facts |= {"offload_step_s": round(offload_s, 2)} if offload_s else {}
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
    gpu = inputs.gpus[0]
    name = USUAL.get(gpu.arch or "", "") if gpu.name in NAMELESS else gpu.name
    if (card := find_gpu(name)) is None:
        raise Skip(f"the speed of {gpu.name} ({gpu.arch}) is not known")
    return name, card


def _reached(inputs: RunInputs, train_spec: TrainSpec, model: ParamCounts) -> Efficiency:
    """The share of the peak that such a training reaches, by what the check of memory found."""
    memory = inputs.facts.get("memory")
    if not memory:
        least, pack = least_policy(train_spec, model), MicroStep(pack_budget(train_spec), patches=0)
        return efficiency(
            model, training_setup(train_spec, least), recomputed_flops_share(train_spec, model, least.recompute, pack)
        )
    policy = read_memory_policy(memory, model.sizes)
    return efficiency(model, training_setup(train_spec, policy), memory["done_again"])


def _offload_s(inputs: DataInputs, train_spec: TrainSpec, samples: Sequence[Sample], model: ParamCounts) -> float:
    """Seconds that offloading adds to a step."""
    if not train_spec.train.fsdp_offload:
        return 0.0
    memory = inputs.facts.get("memory")
    policy = read_memory_policy(memory, model.sizes) if memory else least_policy(train_spec, model)
    pack_tokens = memory["pack_tokens"] if memory else None
    steps = Steps(train_spec, samples, spec.data_ranks(train_spec), "cuda", pack_tokens)
    return offload_seconds(model, training_setup(train_spec, policy), max(map(len, steps.packs(0))))


def _training(train_spec: TrainSpec, samples: Sequence[Sample], total: int, flops: FlopsModel) -> float:
    """FLOPs of all steps, extrapolated from the first ones."""
    steps = Steps(train_spec, samples, spec.data_ranks(train_spec), "cuda")
    looked_at = min(total, MOST_STEPS, steps.order.steps_per_epoch)
    done = sum(flops.training_flops(workload(unit, samples) for unit in steps.units(step)) for step in range(looked_at))
    return done / looked_at * total


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
