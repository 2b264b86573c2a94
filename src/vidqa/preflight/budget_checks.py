"""Budget: tokens of every sample against the limit, the number of steps, and what shared videos save."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vidqa import spec
from vidqa.core.problem import Problem, ProblemError
from vidqa.planning.budget.speed import flops_of
from vidqa.planning.packing import Steps
from vidqa.planning.plan import too_long, without_labels
from vidqa.planning.prefix_sharing import workload
from vidqa.planning.samples import Sample
from vidqa.preflight.inputs import DataInputs, RunInputs, Skip
from vidqa.spec.keys import value_at
from vidqa.spec.run_tables import Vision

EXPLAINED = 10  # too long samples that get a suggested change
MEDIA_CODES = ("VIDEO_", "IMAGE_")


def tokens(inputs: DataInputs) -> list[Problem]:
    """Plan every sample and count its tokens as the engine does."""
    sets = inputs.planned.values()
    problems = [problem for part in sets for problem in part.problems if not _is_of_media(problem)]
    inputs.facts |= token_facts(inputs)
    refused = [sample for part in sets for sample in too_long(part.samples, inputs.longest_allowed)]
    for place, sample in enumerate(sorted(refused, key=lambda sample: -sample.length)):
        fits = changes_that_fit(inputs, sample) if place < EXPLAINED else None
        problems.append(sample.too_long(inputs.longest_allowed, fits))
    if inputs.training and not inputs.declared_action.draws:
        problems += without_labels(inputs.planned["train"].samples)
    if inputs.offline_model is not None:
        return [replace(p, severity="warning", message=f"estimated: {p.message}") for p in problems]
    return [replace(problem, severity=inputs.bad_sample_severity) for problem in problems]


def token_facts(inputs: DataInputs) -> dict[str, Any]:
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
            "tokens_per_sample": _spread(lengths) if lengths else None,
            "longest": [{"where": s.place, "tokens": s.length, "media_tokens": s.media_tokens} for s in longest],
        }
    return facts


def _spread(lengths: list[int]) -> dict[str, int]:
    return {"least": lengths[0], "median": lengths[len(lengths) // 2], "most": lengths[-1]}


def steps(inputs: DataInputs) -> list[Problem]:
    """Steps of a training, and the rules of the spec that need to know the data."""
    train_spec = inputs.training
    if train_spec is None:
        return []
    facts = _data_facts(inputs)
    inputs.facts |= {
        "effective_batch": spec.effective_batch(train_spec),
        "steps_per_epoch": spec.steps_per_epoch(train_spec, facts.train_samples),
        "total_steps": spec.total_steps(train_spec, facts.train_samples),
        "warmup_steps": spec.warmup_steps(train_spec, facts.train_samples),
    }
    reported = set(spec.check(train_spec))
    return [problem for problem in spec.check_with_data(train_spec, facts) if problem not in reported]


def _data_facts(inputs: DataInputs) -> spec.DataFacts:
    """Counts of usable samples; of all records where there is no model to plan with."""
    try:
        held = inputs.usable("validation") if "validation" in inputs.planned else []
        train = inputs.usable("train")
    except (ProblemError, Skip):
        inputs.facts["steps_of"] = "all records: model and media are not here to tell which can be used"
        records = {part.name: len(part.records) for part in inputs.annotations}
        return spec.DataFacts(records["train"], records.get("validation", 0), None)
    longest = None if inputs.offline_model else max((sample.length for sample in train), default=None)
    return spec.DataFacts(len(train), len(held), longest)


def changes_that_fit(inputs: DataInputs, sample: Sample) -> str:
    """The smallest single changes with which the sample fits, each tried with the planner itself."""
    table, key = inputs.sampling.vision, inputs.sampling.length_key
    beside = value_at(inputs.spec, key) - inputs.longest_allowed  # such as the answer
    changes = [f"{key} = {sample.length + beside}"]
    if fewer := _fewer_frames(inputs, sample):
        changes.append(f"{table}.{fewer}")
    if smaller := _smaller_frames(inputs, sample):
        changes.append(f"{table}.{smaller}")
    return "set one of: " + "; ".join(changes)


def _fewer_frames(inputs: DataInputs, sample: Sample) -> str | None:
    """The largest nframes (fps in steps of a sixteenth) that fits, by halving."""
    vision = _sampling(inputs)
    most = vision.nframes or 16
    low, high = 0, most  # `low` fits or is nothing, `high` does not fit
    while high - low > 1:
        middle = (low + high) // 2
        tried = {"nframes": middle} if vision.nframes else {"fps": (vision.fps or 0) * middle / 16}
        low, high = (middle, high) if _fits(inputs, sample, tried) else (low, middle)
    if low == 0:
        return None
    return f"nframes = {low}" if vision.nframes else f"fps = {(vision.fps or 0) * low / 16:g}"


def _smaller_frames(inputs: DataInputs, sample: Sample) -> str | None:
    """The total_pixels that leaves each medium an equal share of what its text leaves."""
    media_tokens = (inputs.longest_allowed - (sample.length - sample.media_tokens)) // max(1, len(sample.plans))
    pixels = media_tokens * inputs.planner.geometry.video.factor**2
    if pixels <= 0 or not _fits(inputs, sample, {"total_pixels": pixels}):
        return None
    return f"total_pixels = {pixels}"


def _fits(inputs: DataInputs, sample: Sample, changes: dict[str, Any]) -> bool:
    """Whether the sample fits with these keys of the vision table."""
    vision = inputs.planner.vision_of(_sampling(inputs).model_copy(update=changes))
    planned, problems = inputs.planner.anew(vision).plan([sample.record], sample.prompting.response_mode)
    return not problems and planned[0].length <= inputs.longest_allowed


def _sampling(inputs: RunInputs) -> Vision:
    return value_at(inputs.spec, inputs.sampling.vision)


def _is_of_media(problem: Problem) -> bool:
    """Whether the media checks report it, once for the file instead of once for every record."""
    return problem.code.startswith(MEDIA_CODES)


MOST_STEPS = 50  # sampled; the others are like them
# The speedup is smaller than the share of work saved: two questions a video halve the work and gave 1.5 times the
# samples/s. Below this share nothing is suggested.
PAYS = 1 / 3


def sharing(inputs: DataInputs) -> list[Problem]:
    """The share of tokens and of work that `engine.share_video_prefix` saves, or would save."""
    train_spec = inputs.training
    if train_spec is None:
        raise Skip("only a training shares videos")
    if inputs.declared_action.draws:
        raise Skip("completions always share their video")
    if not train_spec.engine.packing:
        raise Skip("videos are shared inside packs")
    samples, total = inputs.training_steps(train_spec)
    engine = train_spec.engine.model_copy(update={"share_video_prefix": True})
    steps = Steps(train_spec.model_copy(update={"engine": engine}), samples, inputs.processes, "cuda")
    looked_at = min(total, MOST_STEPS, steps.order.steps_per_epoch)
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
