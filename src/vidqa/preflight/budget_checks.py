"""Budget: tokens of every sample against the limit, and how many steps they make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vidqa import spec
from vidqa.contract.problem import Problem, ProblemError
from vidqa.planning.plan import too_long, without_labels
from vidqa.planning.samples import Planner, Sample
from vidqa.preflight._base import Context, Skip
from vidqa.spec.keys import value_at
from vidqa.spec.run_tables import Vision

EXPLAINED = 10  # too long samples that get a suggested change
MEDIA_CODES = ("VIDEO_", "IMAGE_")


def tokens(context: Context) -> list[Problem]:
    """Plan every sample and count its tokens as the engine does."""
    sets = context.planned.values()
    problems = [problem for part in sets for problem in part.problems if not _is_of_media(problem)]
    context.facts |= token_facts(context)
    refused = [sample for part in sets for sample in too_long(part.samples, context.longest_allowed)]
    for place, sample in enumerate(sorted(refused, key=lambda sample: -sample.length)):
        fits = changes_that_fit(context, sample) if place < EXPLAINED else None
        problems.append(sample.too_long(context.longest_allowed, fits))
    if context.training and not context.declared_action.draws:
        problems += without_labels(context.planned["train"].samples)
    if context.stand_in is not None:
        return [replace(each, severity="warning", message=f"estimated: {each.message}") for each in problems]
    return [replace(problem, severity=context.bad_samples_are) for problem in problems]


def token_facts(context: Context) -> dict[str, Any]:
    """Counts of the usable samples by set, as in plan.json of the engine."""
    facts: dict[str, Any] = {}
    for name in context.planned:
        used = context.usable(name)
        lengths = sorted(sample.length for sample in used)
        longest = sorted(used, key=lambda sample: -sample.length)[:10]
        facts[name] = {
            "samples": len(used),
            "tokens": sum(lengths),
            "supervised_tokens": sum(sample.supervised for sample in used),
            "tokens_per_sample": {
                "least": lengths[0],
                "median": lengths[len(lengths) // 2],
                "most": lengths[-1],
            }
            if lengths
            else None,
            "longest": [{"where": s.place, "tokens": s.length, "media_tokens": s.media_tokens} for s in longest],
        }
    return facts


def steps(context: Context) -> list[Problem]:
    """Steps of a training, and the rules of the spec that need to know the data."""
    train_spec = context.training
    if train_spec is None:
        return []
    facts = _data_facts(context)
    context.facts |= {
        "effective_batch": spec.effective_batch(train_spec),
        "steps_per_epoch": spec.steps_per_epoch(train_spec, facts.train_samples),
        "total_steps": spec.total_steps(train_spec, facts.train_samples),
        "warmup_steps": spec.warmup_steps(train_spec, facts.train_samples),
    }
    reported = set(spec.check(train_spec))
    return [problem for problem in spec.check_with_data(train_spec, facts) if problem not in reported]


def _data_facts(context: Context) -> spec.DataFacts:
    """Counts of usable samples; of all records where there is no model to plan with."""
    try:
        held = context.usable("validation") if "validation" in context.planned else []
        train = context.usable("train")
    except (ProblemError, Skip):
        context.facts["steps_of"] = "all records: model and media are not here to tell which can be used"
        records = {part.name: len(part.records) for part in context.annotations}
        return spec.DataFacts(records["train"], records.get("validation", 0), None)
    longest = None if context.stand_in else max((sample.length for sample in train), default=None)
    return spec.DataFacts(len(train), len(held), longest)


def changes_that_fit(context: Context, sample: Sample) -> str:
    """The smallest single changes with which the sample fits, each tried with the planner itself."""
    table, key = context.sampling.vision, context.sampling.length_key
    beside = value_at(context.spec, key) - context.longest_allowed  # such as the answer
    changes = [f"{key} = {sample.length + beside}"]
    if fewer := _fewer_frames(context, sample):
        changes.append(f"{table}.{fewer}")
    if smaller := _smaller_frames(context, sample):
        changes.append(f"{table}.{smaller}")
    return "set one of: " + "; ".join(changes)


def _fewer_frames(context: Context, sample: Sample) -> str | None:
    """The largest nframes (fps in steps of a sixteenth) that fits, by halving."""
    vision = _sampling(context)
    most = vision.nframes or 16
    low, high = 0, most  # `low` fits or is nothing, `high` does not fit
    while high - low > 1:
        middle = (low + high) // 2
        tried = _with(vision, nframes=middle) if vision.nframes else _with(vision, fps=_sixteenths(vision, middle))
        low, high = (middle, high) if _fits(context, sample, tried) else (low, middle)
    if low == 0:
        return None
    return f"nframes = {low}" if vision.nframes else f"fps = {_sixteenths(vision, low):g}"


def _with(vision: Vision, **changes: float) -> Vision:
    return vision.model_copy(update=changes)


def _sixteenths(vision: Vision, count: int) -> float:
    return (vision.fps or 0) * count / 16


def _smaller_frames(context: Context, sample: Sample) -> str | None:
    """The total_pixels that leaves each medium an equal share of what its text leaves."""
    media_tokens = (context.longest_allowed - (sample.length - sample.media_tokens)) // max(1, len(sample.plans))
    pixels = media_tokens * context.planner.geometry.video.factor**2
    if pixels <= 0 or not _fits(context, sample, _with(_sampling(context), total_pixels=pixels)):
        return None
    return f"total_pixels = {pixels}"


def _fits(context: Context, sample: Sample, vision: Vision) -> bool:
    planner = Planner(context.processor_folder, vision, sample.prompting)
    planned, problems = planner.plan([sample.record])
    return not problems and planned[0].length <= context.longest_allowed


def _sampling(context: Context) -> Vision:
    return value_at(context.spec, context.sampling.vision)


def _is_of_media(problem: Problem) -> bool:
    """Whether the media checks report it, once for the file instead of once for every record."""
    return problem.code.startswith(MEDIA_CODES) and problem.code != "VIDEO_BUDGET_TOO_SMALL"
