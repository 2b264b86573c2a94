"""Budget checks: tokens of every sample against the limit, the number of steps, the gain of sharing videos, and the
hours of GPUs and of decoding, from the FLOPs of a training and the speed of measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vidqa import spec
from vidqa.core.problem import Problem, ProblemError
from vidqa.planning.budget.autotune import least_policy
from vidqa.planning.budget.memory import MemoryPolicy, MicroStep, TrainingSetup, read_memory_policy, training_setup
from vidqa.planning.budget.methods import micro_step_seconds, step_seconds
from vidqa.planning.budget.params import ParamCounts
from vidqa.planning.budget.speed import START_S, FlopsModel, Gpu, efficiency, flops_of, recomputed_flops_share
from vidqa.planning.packing import Steps, pack_budget
from vidqa.planning.plan import too_long, unmeasured, without_labels
from vidqa.planning.prefix_sharing import workload
from vidqa.planning.rollouts import step_time
from vidqa.planning.samples import Sample
from vidqa.preflight.answering_checks import answering_time
from vidqa.preflight.gpus import NONE_HERE, card_of
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.spec.keys import value_at
from vidqa.spec.models import GrpoSpec, TrainSpec
from vidqa.spec.run_tables import Vision
from vidqa.video.problems import MEDIA_UNREADABLE, VIDEO_DECODE_TIMEOUT

EXPLAINED = 10  # most samples over the limit that get a suggested change
SHARING_STEPS, TIMED_STEPS = 50, 200  # steps whose work is summed; the others are alike
# The speedup is smaller than the share of work saved: two questions per video halve the work and gave 1.5 times the
# samples/s. Below this share no change is suggested.
PAYS = 1 / 3
OF_FILES = (MEDIA_UNREADABLE.name, VIDEO_DECODE_TIMEOUT.name)


def tokens(inputs: Inputs) -> list[Problem]:
    """Plan every sample and count its tokens as the engine does."""
    sets = inputs.planned.values()
    # The media checks report the problems of a file, once instead of for every record.
    problems = [p for part in sets for p in part.problems if p.code not in OF_FILES]
    inputs.facts |= token_facts(inputs)
    refused = [sample for part in sets for sample in too_long(part.samples, inputs.longest_allowed)]
    for place, sample in enumerate(sorted(refused, key=lambda sample: -sample.length)):
        fits = changes_that_fit(inputs, sample) if place < EXPLAINED else None
        problems.append(sample.too_long(inputs.longest_allowed, fits))
    learned = [part.samples for name, part in inputs.planned.items() if inputs.is_learned(name)]
    problems += [problem for samples in learned for problem in without_labels(samples)]
    held = unmeasured(inputs.usable("validation")) if learned and "validation" in inputs.planned else []
    if inputs.offline_model is not None:
        return [replace(p, severity="warning", message=f"estimated: {p.message}") for p in problems + held]
    return [replace(problem, severity=inputs.bad_sample_severity) for problem in problems] + held


def token_facts(inputs: Inputs) -> dict[str, Any]:
    """Counts of the usable samples by set, as in plan.json of the engine."""
    facts: dict[str, Any] = {}
    for name in inputs.planned:
        used = inputs.usable(name)
        lengths = sorted(sample.length for sample in used)
        longest = sorted(used, key=lambda sample: -sample.length)[:10]
        facts[name] = {
            "samples": len(used),
            "tokens": sum(lengths),
            "supervised_tokens": sum(sample.supervised for sample in used),
            "tokens_per_sample": {"least": lengths[0], "median": lengths[len(lengths) // 2], "most": lengths[-1]}
            if lengths
            else None,
            "longest": [{"where": s.record.place, "tokens": s.length, "media_tokens": s.media_tokens} for s in longest],
        }
    return facts


def steps(inputs: Inputs) -> list[Problem]:
    """The number of steps of a training, and the rules of the spec that depend on the data."""
    train_spec = inputs.training
    if train_spec is None:
        return []
    facts = _data_facts(inputs)
    if not facts.train_samples and inputs.bad_sample_severity == "error":
        raise Skip("no sample can be used, as other checks report")
    inputs.facts |= {
        "effective_batch": spec.effective_batch(train_spec),
        "steps_per_epoch": spec.steps_per_epoch(train_spec, facts.train_samples),
        "total_steps": spec.total_steps(train_spec, facts.train_samples),
        "warmup_steps": spec.warmup_steps(train_spec, facts.train_samples),
    }
    reported = set(spec.check(train_spec))
    return [problem for problem in spec.check_with_data(train_spec, facts) if problem not in reported]


def _data_facts(inputs: Inputs) -> spec.DataFacts:
    """Counts of usable samples; of all records if no model is available for planning."""
    try:
        held = inputs.usable("validation") if "validation" in inputs.planned else []
        train = inputs.usable("train")
    except (ProblemError, Skip):
        inputs.facts["steps_of"] = "all records: model and media are not here to tell which can be used"
        records = {part.name: len(part.records) for part in inputs.annotations}
        return spec.DataFacts(records["train"], records.get("validation", 0), None)
    longest = None if inputs.offline_model else max((sample.length for sample in train), default=None)
    return spec.DataFacts(len(train), len(held), longest)


def changes_that_fit(inputs: Inputs, sample: Sample) -> str:
    """The smallest single changes with which the sample fits, each tested with the planner."""
    table, key = inputs.sampling.vision, inputs.sampling.length_key
    beside = value_at(inputs.spec, key) - inputs.longest_allowed  # for other tokens, such as the answer's
    changes = [f"{key} = {sample.length + beside}"]
    if fewer := _fewer_frames(inputs, sample):
        changes.append(f"{table}.{fewer}")
    if smaller := _smaller_frames(inputs, sample):
        changes.append(f"{table}.{smaller}")
    return "set one of: " + "; ".join(changes)


def _fewer_frames(inputs: Inputs, sample: Sample) -> str | None:
    """The largest nframes (or fps in steps of a sixteenth) that fits, by bisection."""
    vision = _sampling(inputs)
    most = vision.nframes or 16
    low, high = 0, most  # `low` fits or is 0, `high` does not fit
    while high - low > 1:
        middle = (low + high) // 2
        tried = {"nframes": middle} if vision.nframes else {"fps": (vision.fps or 0) * middle / 16}
        low, high = (middle, high) if _fits(inputs, sample, tried) else (low, middle)
    if low == 0:
        return None
    return f"nframes = {low}" if vision.nframes else f"fps = {(vision.fps or 0) * low / 16:g}"


def _smaller_frames(inputs: Inputs, sample: Sample) -> str | None:
    """The total_pixels per medium if all media share equally the tokens that the text leaves."""
    media_tokens = (inputs.longest_allowed - (sample.length - sample.media_tokens)) // max(1, len(sample.plans))
    pixels = media_tokens * inputs.planner.geometry.video.factor**2
    if pixels <= 0 or not _fits(inputs, sample, {"total_pixels": pixels}):
        return None
    return f"total_pixels = {pixels}"


def _fits(inputs: Inputs, sample: Sample, changes: dict[str, Any]) -> bool:
    """Whether the sample fits with these keys of the vision table."""
    vision = inputs.planner.vision_spec(_sampling(inputs).model_copy(update=changes))
    planned, problems = inputs.planner.with_vision(vision).plan([sample.record], sample.prompting.response_mode)
    return not problems and planned[0].length <= inputs.longest_allowed


def _sampling(inputs: Inputs) -> Vision:
    return value_at(inputs.spec, inputs.sampling.vision)


def sharing(inputs: Inputs) -> list[Problem]:
    """The share of tokens and of work that `engine.share_video_prefix` saves, or would save."""
    train_spec = inputs.training
    if train_spec is None:
        raise Skip("only a training shares videos")
    if inputs.declared_action.generates_completions:
        raise Skip("completions always share their video")
    if not train_spec.engine.packing:
        raise Skip("videos are shared inside packs")
    samples, total = inputs.training_steps(train_spec)
    engine = train_spec.engine.model_copy(update={"share_video_prefix": True})
    steps = Steps(train_spec.model_copy(update={"engine": engine}), samples, inputs.processes, "cuda")
    looked_at = min(total, SHARING_STEPS, steps.order.steps_per_epoch)
    together = [unit for step in range(looked_at) for unit in steps.units(step)]
    alone = [(number,) for unit in together for number in unit]
    model = inputs.memory_model(train_spec)
    flops = flops_of(train_spec, model)
    both = [[workload(unit, samples) for unit in units] for units in (together, alone)]
    tokens = [sum(one.tokens for one in works) for works in both]
    work = [flops.training_flops(works) for works in both]
    with_media = [len(unit) for unit in together if samples[unit[0]].plans]
    inputs.facts["sharing"] = {
        "on": train_spec.engine.share_video_prefix,
        "questions_per_video": round(sum(with_media) / max(1, len(with_media)), 2),
        "tokens_saved": round(1 - tokens[0] / tokens[1], 3),
        "work_saved": round(saved := 1 - work[0] / work[1], 3),
        "pays": saved >= PAYS,
    }
    return []


def time(inputs: Inputs) -> list[Problem]:
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


def _card(inputs: Inputs) -> tuple[str, Gpu]:
    """The name and the data sheet of the job's GPU; for a declared one, the usual GPU of its architecture."""
    name, card = card_of(inputs.gpus)
    if card is None:
        speeds = [f"the speed of {gpu.name} ({gpu.arch}) is not known" for gpu in inputs.gpus]
        inputs.facts["time_unknown"] = reason = speeds[0] if speeds else NONE_HERE
        raise Skip(reason)
    return name, card


def _memory_policy(inputs: Inputs, train_spec: TrainSpec, model: ParamCounts) -> tuple[MemoryPolicy, float]:
    """The policy that the memory check chose, and the share of FLOPs that it recomputes; without that check, the policy
    of least memory."""
    if memory := inputs.facts.get("memory"):
        return read_memory_policy(memory, model.sizes), memory["done_again"]
    least, pack = least_policy(train_spec, model), MicroStep(pack_budget(train_spec), patches=0)
    return least, recomputed_flops_share(train_spec, model, least.recompute, pack)


def _training(train_spec: TrainSpec, samples: Sequence[Sample], total: int, flops: FlopsModel) -> float:
    """FLOPs of all steps, extrapolated from the first ones."""
    steps = Steps(train_spec, samples, spec.data_ranks(train_spec), "cuda")
    looked_at = min(total, TIMED_STEPS, steps.order.steps_per_epoch)
    done = sum(flops.training_flops(workload(unit, samples) for unit in steps.units(step)) for step in range(looked_at))
    return done / looked_at * total


def _for_memory(steps: Steps, model: ParamCounts, setup: TrainingSetup, total: int, card: Gpu) -> float:
    """Additional seconds of all steps for a quantized base and for weights in host memory."""
    if not (setup.base_precision or setup.cpu_offload):
        return 0.0
    looked_at = min(total, TIMED_STEPS, steps.order.steps_per_epoch)
    micro_steps = sum(len(steps.packs(step)[0]) for step in range(looked_at)) / looked_at
    return total * (micro_steps * micro_step_seconds(model, setup, card) + step_seconds(model, setup))


def _validation(inputs: Inputs, train_spec: TrainSpec, total: int, flops: FlopsModel) -> float:
    """FLOPs of all validations: each a third of training on the same tokens."""
    if not train_spec.validation.enable or "validation" not in inputs.planned:
        return 0.0
    held, per_epoch = inputs.usable("validation"), spec.steps_per_epoch(train_spec, len(inputs.usable("train")))
    times = validations(train_spec, total, per_epoch)
    return times * flops.training_flops(workload((number,), held) for number in range(len(held))) / 3


def validations(train_spec: TrainSpec, total: int, per_epoch: int) -> int:
    """The number of validations in a training of `total` steps, including those at its end and, if set, its start."""
    valid = train_spec.validation
    every = valid.freq or valid.freq_in_epoch * per_epoch or total
    return -(-total // every) + valid.val_before_train


def _decoding(inputs: Inputs, train_spec: TrainSpec) -> dict[str, Any]:
    """Hours of decoding every file once, from the measured seconds; other files count as the average."""
    timed = [row.decode_s for row in inputs.rows.values() if not row.code]
    if not timed:
        return {}
    core_s = sum(timed) / len(timed) * len(inputs.media)
    # Each of the GPUs that share a pack decodes its videos.
    workers = max(1, train_spec.train.train_policy.dataloader_num_workers) * spec.data_ranks(train_spec)
    return {
        "decode_core_hours": round(core_s / 3600, 3),
        "decode_hours_per_pass": round(core_s / workers / 3600, 3),
        "decoded_again_every_epoch": not train_spec.engine.frame_cache_gb,
    }
