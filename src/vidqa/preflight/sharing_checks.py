"""Whether sharing a video among its questions pays: the share of work saved on this data."""

from __future__ import annotations

from vidqa import spec
from vidqa.contract.problem import Problem
from vidqa.planning.budget.flops import flops_model
from vidqa.planning.packing.prefix_sharing import workload
from vidqa.planning.packing.steps import Steps
from vidqa.preflight._base import Context, Skip
from vidqa.preflight.trained import trained_model

MOST_STEPS = 50  # sampled; the others are like them
# The speedup is smaller than the share of work saved: two questions a video halve the work and gave 1.5 times the
# samples/s. Below this share nothing is suggested.
PAYS = 1 / 3


def sharing(context: Context) -> list[Problem]:
    """The share of tokens and of work that `engine.share_video_prefix` saves, or would save."""
    train_spec = context.training
    if train_spec is None:
        raise Skip("only a training shares videos")
    if context.declared_action.draws:
        raise Skip("completions always share their video")
    if not train_spec.engine.packing:
        raise Skip("videos are shared inside packs")
    samples = context.usable("train")
    total = spec.total_steps(train_spec, len(samples))
    if not total:
        raise Skip("there is no step to look at")
    engine = train_spec.engine.model_copy(update={"share_video_prefix": True})
    steps = Steps(train_spec.model_copy(update={"engine": engine}), samples, context.processes, "cuda")
    looked_at = min(total, MOST_STEPS, steps.order.steps_per_epoch)
    together = [unit for step in range(looked_at) for unit in steps.units(step)]
    alone = [(number,) for unit in together for number in unit]
    model = trained_model(context, train_spec)
    flops = flops_model(
        model.sizes, vision_trains=model.vision.trained > 0, decoder_trains=train_spec.policy.lora is None
    )
    both = [[workload(unit, samples) for unit in units] for units in (together, alone)]
    tokens = [sum(one.tokens for one in works) for works in both]
    work = [flops.training_flops(works) for works in both]
    with_media = [len(unit) for unit in together if samples[unit[0]].plans]
    context.facts["sharing"] = {
        "on": train_spec.engine.share_video_prefix,
        "questions_per_video": round(sum(with_media) / max(1, len(with_media)), 2),
        "tokens_saved": round(1 - tokens[0] / tokens[1], 3),
        "work_saved": round(saved := 1 - work[0] / work[1], 3),
        "pays": saved >= PAYS,
    }
    return []
