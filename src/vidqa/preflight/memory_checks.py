"""Memory checks: the heaviest pack fits into a GPU and saves fit into the host; otherwise a change that helps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core.problem import Problem
from vidqa.jobs.job_spec import process_count
from vidqa.planning.budget.autotune import Forecast, Packing, answered_samples, best_policy, least_policy
from vidqa.planning.budget.memory import GIB, fits, state_bytes, training_setup
from vidqa.planning.budget.memory_constants import CONSTANTS
from vidqa.planning.budget.methods import fitting_methods, host_bytes
from vidqa.planning.budget.params import ParamCounts
from vidqa.planning.budget.speed import recomputed_flops_share
from vidqa.planning.packing import Steps, pack_budget
from vidqa.planning.prefix_sharing import max_tokens
from vidqa.planning.rollouts import rollout_memory, rollout_shape, update_packing
from vidqa.planning.samples import Sample
from vidqa.preflight.gpus import NONE_HERE, card_of, least_memory
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.problems import MEMORY
from vidqa.spec.keys import with_values
from vidqa.spec.models import GrpoSpec, TrainSpec

MOST_SHARDS = 64
LONG = 16_384  # tokens of a sample from which sharing it among GPUs is suggested
COARSE = 1024  # step in tokens between tested pack budgets
Change = dict[str, Any]
ADAPTERS: Change = {"policy.lora": {}, "policy.freeze_pattern": None, "policy.trainable_pattern": None}

NOTHING_HELPS = (
    "no change of the spec makes it fit: use GPUs with more memory, a smaller model, or fewer and smaller frames"
)
RAISE = "raise engine.gpu_memory_gib, which is the share of the GPU for this job"


def memory(inputs: Inputs, train_spec: TrainSpec) -> list[Problem]:
    """Compare the peak of one GPU for the heaviest pack with the visible or declared memory of the GPUs."""
    samples, _ = inputs.training_steps(train_spec)
    has_gib = usable_memory(inputs)
    model = inputs.memory_model(train_spec)
    answered = _answered(inputs, train_spec)
    expected = estimate(model, train_spec, samples, has_gib, answered)
    again = recomputed_flops_share(train_spec, model, expected.policy.recompute, expected.micro_step)
    inputs.facts["memory"] = _facts(expected, has_gib) | {"done_again": round(again, 3)}
    heaviest = expected.micro_step
    details = f"the heaviest pack puts {heaviest.tokens} tokens and {heaviest.patches} patches on a GPU"
    if expected.memory.moment == "generation":
        details = "validation answers samples (engine.validation_generate), for which each GPU gathers the whole model"
    remedy = partial(_remedy, inputs, train_spec, samples, answered)
    return memory_problems(inputs, expected.memory.peak_gib, details, remedy, reserved_gib=expected.reserved_gib)


def _answered(inputs: Inputs, train_spec: TrainSpec) -> Sequence[Sample]:
    held = inputs.usable("validation") if "validation" in inputs.planned else ()
    return answered_samples(train_spec, held)


def usable_memory(inputs: Inputs) -> float | None:
    """GiB that the job may use of the smallest GPU; None if that is unknown."""
    engine = getattr(inputs.spec, "engine", None)  # an action of a plug-in may have none
    has_gib, limit_gib = least_memory(inputs.gpus), getattr(engine, "gpu_memory_gib", None)
    return has_gib if has_gib is None or limit_gib is None else min(has_gib, limit_gib)


def memory_problems(
    inputs: Inputs, peak_gib: float, details: str, remedy: Callable[[float], str], *, reserved_gib: float = 0.0
) -> list[Problem]:
    """MEMORY if the predicted peak does not fit beside `reserved_gib`: an error, or a warning if it may fit within the
    error of the prediction. `remedy` finds a change that fits a GPU of that many GiB; it is called only when needed."""
    has_gib, whole_gib = usable_memory(inputs), least_memory(inputs.gpus)
    if has_gib is None or whole_gib is None or fits(peak_gib, has_gib - reserved_gib):
        return []
    advice = remedy(has_gib)
    if has_gib < whole_gib and fits(peak_gib, whole_gib - reserved_gib):
        advice = RAISE if advice == NOTHING_HELPS else f"{RAISE}, or {advice}"
    peak_gib += reserved_gib
    message = (
        f"about {peak_gib:.1f} GiB, and {CONSTANTS.outside_gib:.0f} for CUDA, of {has_gib:.1f} GiB a GPU; {details}"
    )
    sure = peak_gib + CONSTANTS.outside_gib > has_gib
    return [MEMORY.at("GPU memory", message, advice, severity="error" if sure else "warning")]


def methods(inputs: Inputs) -> list[Problem]:
    """Record the capacity of the job's GPUs for each training method; no problems."""
    train_spec, limit_gib = inputs.training, usable_memory(inputs)
    if train_spec is None or isinstance(train_spec, GrpoSpec):
        raise Skip("only a supervised training is estimated")
    if limit_gib is None:
        raise Skip(NONE_HERE)
    name, card = card_of(inputs.gpus)
    fitting = fitting_methods(train_spec, inputs.sizes, inputs.family.tensors(inputs.sizes), limit_gib, card, name)
    inputs.facts["methods"] = [asdict(fit) for fit in fitting]
    return []


def host_memory(inputs: Inputs) -> list[Problem]:
    """Check host memory: asynchronous saves keep a copy of weights and Adam moments there; train.fsdp_offload keeps
    both there permanently, with gradients."""
    train_spec = inputs.training
    offloads = train_spec is not None and train_spec.train.fsdp_offload
    if train_spec is None or not (train_spec.train.ckpt.enable_checkpoint or offloads):
        raise Skip("nothing is saved")
    if train_spec.train.ckpt.save_mode != "async" and not offloads:
        raise Skip("saves are not made beside the training")
    if inputs.declared.anything or not (inputs.gpus or inputs.platform == "local"):
        raise Skip("the machine that trains is not this one")
    model = inputs.memory_model(train_spec)
    setup = training_setup(train_spec, least_policy(train_spec, model))
    copied = train_spec.train.ckpt.enable_checkpoint and train_spec.train.ckpt.save_mode == "async"
    needed = (state_bytes(model.every, setup) * copied + host_bytes(model, setup)) / GIB
    has = available_gib()
    inputs.facts["host_memory"] = {"copy_gib": round(needed, 1), "available_gib": round(has, 1)}
    what = "the copy, and what is offloaded," if offloads else "the copy"
    message = f"{what} takes {needed:.1f} GiB of host memory; {has:.1f} are available"
    remedy = 'set train.ckpt.save_mode = "sync" and train.fsdp_offload = false, or use a machine with more memory'
    return [MEMORY.at("host memory", message, remedy, severity="warning")] if needed > has else []


def available_gib() -> float:
    """Free memory of this machine in GiB, without swapping."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kibibytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return kibibytes / 1024**2


def estimate(
    model: ParamCounts,
    train_spec: TrainSpec,
    samples: Sequence[Sample],
    has_gib: float | None,
    answered: Sequence[Sample] = (),
) -> Forecast:
    """Forecast the memory of a training of `model` with this spec, whose validation answers the samples `answered`;
    also used for every candidate change."""
    if isinstance(train_spec, GrpoSpec):
        return _with_rollouts(model, train_spec, samples, has_gib)
    steps_of = partial(Steps, train_spec, samples, spec.data_ranks(train_spec), "cuda")
    packing = Packing(steps_of, max(1, spec.total_steps(train_spec, len(samples))), answered)
    return best_policy(train_spec, model, packing, has_gib)


def _with_rollouts(
    model: ParamCounts, rl_spec: GrpoSpec, questions: Sequence[Sample], has_gib: float | None
) -> Forecast:
    """Forecast the memory of updates beside the rollout model and its cache."""
    shape = rollout_shape(rl_spec, max_tokens(questions))
    rollouts = rollout_memory(rl_spec, model, shape)
    packing = update_packing(rl_spec, questions, spec.data_ranks(rl_spec), "cuda")
    return best_policy(rl_spec, model, packing, has_gib, rollouts.gib)


def peak_within(inputs: Inputs, limit_gib: float) -> float | None:
    """Peak GiB of a training that may use at most `limit_gib` of a GPU; None if it does not fit. Raises ProblemError,
    Skip if no estimate is possible."""
    train_spec = inputs.training
    if train_spec is None:
        raise Skip("only a training is estimated")
    samples, _ = inputs.training_steps(train_spec)
    model, answered = inputs.memory_model(train_spec), _answered(inputs, train_spec)
    expected = estimate(model, train_spec, samples, limit_gib, answered)
    return expected.peak_gib if expected.fits(limit_gib) else None


def _facts(expected: Forecast, has_gib: float | None) -> dict[str, Any]:
    memory, heaviest = expected.memory, expected.micro_step
    return {
        "peak_gib": round(expected.peak_gib, 1),
        "gpu_gib": has_gib,
        "weights_and_optimizer_gib": round(memory.always / GIB + expected.reserved_gib, 1),
        **expected.policy.record(),
        "moment": memory.moment,
        "pack_tokens": expected.policy.pack_tokens,
        "heaviest_pack_tokens": heaviest.tokens,
        "heaviest_pack_patches": heaviest.patches,
    }


def _remedy(
    inputs: Inputs, train_spec: TrainSpec, samples: Sequence[Sample], answered: Sequence[Sample], has_gib: float
) -> str:
    """The cheapest single change that fits, among those that the spec's rules allow; else the smallest combination. A
    change for more GPUs than the job has is marked as such."""

    def errors(changed: TrainSpec) -> set[tuple[str, str]]:
        return {(problem.code, problem.where) for problem in spec.check(changed) if problem.severity == "error"}

    def is_allowed(change: Change) -> bool:
        changed = with_values(train_spec, change)
        return errors(changed) <= present_errors and spec.total_steps(changed, len(samples)) > 0

    def judged(change: Change) -> bool:
        changed = with_values(train_spec, change)
        model = inputs.memory_model(changed)
        expected = estimate(model, changed, samples, has_gib, answered_samples(changed, answered))
        return expected.fits(has_gib)

    def proposal(change: Change) -> str:
        return f"set {_change_text(change)}" + (f"; or, with more GPUs, {more_gpus}" if more_gpus else "")

    present_errors = errors(train_spec)
    most_gpus = max(inputs.processes, len(inputs.gpus) * inputs.resources.nodes)
    together: Change = {}
    more_gpus = ""
    contexts = partial(_contexts, inputs.memory_model(train_spec).sizes.text.kv_heads)
    for kind in (_recompute, _shards, _packs, contexts, _answers, _moments, _adapters):
        tried: Change = {}
        for change in filter(is_allowed, kind(train_spec, samples)):
            if process_count(with_values(train_spec, change)) > most_gpus:
                more_gpus = more_gpus or (_change_text(change) if judged(change) else "")
                continue
            tried = change
            if judged(change):
                return proposal(change)
        together |= tried  # the largest of its kind
        if len(together) > len(tried) and is_allowed(together) and judged(together):
            return proposal(together)
    return f"with more GPUs, set {more_gpus}" if more_gpus else NOTHING_HELPS


def _recompute(train_spec: TrainSpec, _: Sequence[Sample]) -> Iterator[Change]:
    """Reshard more, recompute activations, or both: up to a third slower, same result."""
    changes: list[Change] = []
    if train_spec.train.fsdp_reshard_after_forward in ("never", "false"):
        changes.append({"train.fsdp_reshard_after_forward": "default"})
    if not train_spec.policy.model_gradient_checkpointing:
        changes.append({"policy.model_gradient_checkpointing": True, "engine.recompute": "auto"})
    elif train_spec.engine.recompute in ("none", "vision"):
        changes.append({"engine.recompute": "auto"})
    yield from changes
    if len(changes) == 2:
        yield changes[0] | changes[1]


def _shards(train_spec: TrainSpec, _: Sequence[Sample]) -> Iterator[Change]:
    """Shard over more GPUs; the batch per GPU becomes smaller, so that the step is the same."""
    mesh, batch = train_spec.policy.parallelism, train_spec.train.train_batch_per_replica
    shard = mesh.dp_shard_size
    while shard * 2 <= MOST_SHARDS:
        shard *= 2
        change: Change = {"policy.parallelism.dp_shard_size": shard}
        smaller = batch * mesh.dp_shard_size // shard
        has_own_batch = not isinstance(train_spec, GrpoSpec)
        if has_own_batch and smaller and smaller % train_spec.train.train_policy.mini_batch == 0:
            change["train.train_batch_per_replica"] = smaller
        yield change


def _packs(train_spec: TrainSpec, samples: Sequence[Sample]) -> Iterator[Change]:
    """Smaller packs, down to the longest sample: more and smaller micro-steps."""
    if not train_spec.engine.packing:
        if train_spec.train.train_policy.mini_batch > 1:
            yield {"train.train_policy.mini_batch": 1}
        return
    longest = -(-max(sample.length for sample in samples) // COARSE) * COARSE
    budget = pack_budget(train_spec)
    while budget > longest:
        budget = max(longest, budget // 2 // COARSE * COARSE)
        yield {"engine.pack_tokens": budget}


def _contexts(key_heads: int, train_spec: TrainSpec, samples: Sequence[Sample]) -> Iterator[Change]:
    """Share each pack among more GPUs, if samples are long enough."""
    if max(sample.length for sample in samples) < LONG:
        return
    for size in range(train_spec.policy.parallelism.cp_size + 1, key_heads + 1):
        if key_heads % size == 0:
            yield {"policy.parallelism.cp_size": size}


def _answers(train_spec: TrainSpec, _: Sequence[Sample]) -> Iterator[Change]:
    """Validate by the loss alone, for which no GPU gathers the whole model."""
    if train_spec.engine.validation_generate:
        yield {"engine.validation_generate": 0}


def _moments(train_spec: TrainSpec, _: Sequence[Sample]) -> Iterator[Change]:
    """Adam's moments in 8 bits; those of LoRA are negligible."""
    if train_spec.policy.lora is None and train_spec.train.optm_name == "AdamW":
        yield {"train.optm_name": "AdamW8bit"}


def _adapters(train_spec: TrainSpec, _: Sequence[Sample]) -> Iterator[Change]:
    """LoRA, then LoRA on a quantized base."""
    adapters: Change = {} if train_spec.policy.lora else dict(ADAPTERS)
    if adapters:
        if isinstance(train_spec, GrpoSpec):
            adapters["policy.lora"] = {"lora_dropout": 0.0}
        if train_spec.train.fp8.enable_fp8:
            adapters["train.fp8.enable_fp8"] = False
        yield adapters
    if train_spec.policy.parallelism.cp_size == 1 and not isinstance(train_spec, GrpoSpec):
        bits = {None: ("fp8", "nf4"), "fp8": ("nf4",)}.get(train_spec.policy.quantization, ())
        yield from (adapters | {"policy.quantization": precision} for precision in bits)


def _change_text(change: Change) -> str:
    words = [f"{key} = {json.dumps(value)}" for key, value in change.items() if key not in ADAPTERS]
    return "; ".join([*words, *(["policy.lora, by building the spec with --profile lora"] * ("policy.lora" in change))])
