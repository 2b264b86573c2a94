"""A text summary of the facts of a report; --json has all facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vidqa.core import actions
from vidqa.core.cli import duration_text, size_text

Facts = dict[str, Any]
Line = tuple[str, str]


def summary(facts: Facts) -> list[Line]:
    """Lines (name, text) for the available facts."""
    counts = (_estimated, _samples, _answers, _media, _steps, _rollout, _sharing)
    parts = (*counts, _trains, _memory, _methods, _time, _disk, _hardware)
    return [line for part in parts for line in part(facts)]


def _estimated(facts: Facts) -> Iterator[Line]:
    if "estimated_for" in facts:
        yield (
            "estimated",
            f"token counts and what follows from them: {facts['estimated_for']} is not on this machine; its sizes are "
            "known, its tokenizer is not",
        )


def _samples(facts: Facts) -> Iterator[Line]:
    for data in {data.name: data for action in actions.every() for data in action.data}.values():
        name = data.name
        counts = facts.get(name)
        about = "about " * ("estimated_for" in facts)
        if counts and counts["tokens_per_sample"]:
            spread = counts["tokens_per_sample"]
            count = counts["supervised_tokens"] if data.is_trained_on else 0
            learned = f", {count:,} of them learned" if count else ""
            yield (
                name,
                f"{counts['samples']:,} samples of {about}{spread['least']:,} to {spread['most']:,} tokens; "
                f"{about}{counts['tokens']:,} in all{learned}",
            )
        elif f"{name}_records" in facts:
            yield name, f"{facts[f'{name}_records']:,} records"
    if "kpi_records" in facts:
        yield "kpi", f"{facts['kpi_records']:,} records"


def _answers(facts: Facts) -> Iterator[Line]:
    forms_by_set = {name: facts[key] for name in ("train", "evaluation") if (key := f"{name}_answers") in facts}
    for name, forms in forms_by_set.items():
        yield f"{name} answers", ", ".join(f"{count:,} {form}" for form, count in forms.items())
    for name in ("evaluation", "kpi"):
        if f"{name}_gap_analysis" in facts:
            yield f"{name} gaps", facts[f"{name}_gap_analysis"]


def _media(facts: Facts) -> Iterator[Line]:
    if "media_files" not in facts:
        return
    text = f"{facts['media_files']:,} files, {duration_text(facts['video_seconds'])} of video"
    if "media_decoded" in facts:
        before = f" ({facts['media_reused']:,} of them by an earlier preflight)" if facts["media_reused"] else ""
        text += f"; {facts['media_decoded']:,} decoded{before}"
    yield "media", text


def _steps(facts: Facts) -> Iterator[Line]:
    if "total_steps" in facts:
        counted = f" (of {facts['steps_of']})" if "steps_of" in facts else ""
        what = "questions" if "rollout" in facts else "samples"
        yield (
            "steps",
            f"{facts['total_steps']:,} of {facts['effective_batch']:,} {what}, {facts['steps_per_epoch']:,} per epoch; "
            f"{facts['warmup_steps']:,} of warm-up{counted}",
        )


def _rollout(facts: Facts) -> Iterator[Line]:
    if rollout := facts.get("rollout"):
        yield (
            "step",
            f"{rollout['questions_per_step']:,} questions with {rollout['completions_per_question']:,} completions "
            f"each, {rollout['completions_per_step']:,} in all, of at most {rollout['longest_completion']:,} tokens",
        )


def _sharing(facts: Facts) -> Iterator[Line]:
    """The gain of sharing videos; no line if each video has one question."""
    shared = facts.get("sharing")
    if shared is None or not shared["tokens_saved"]:
        return
    saved = f"{shared['tokens_saved']:.0%} of the tokens, {shared['work_saved']:.0%} of the work"
    questions = f"{shared['questions_per_video']:.1f} questions per video in a step"
    if shared["on"]:
        yield "shared videos", f"{questions}: saves {saved}"
    elif shared["pays"]:
        yield "shared videos", f"{questions}: on GPUs --set engine.share_video_prefix=true saves {saved}"


def _trains(facts: Facts) -> Iterator[Line]:
    if "trainable_parameters" in facts and "parameters" in facts:
        yield "trainable", f"{facts['trainable_parameters']:,} of {facts['parameters']:,} parameters"


def _memory(facts: Facts) -> Iterator[Line]:
    if memory := facts.get("memory"):
        limit = f" of {memory['gpu_gib']:.1f}" if memory["gpu_gib"] else ""
        peak = f"about {memory['peak_gib']:.1f}" if memory["peak_gib"] else "under 0.1"
        whose = "" if memory["gpu_gib"] else "no GPU is visible here; by estimate "
        if "cache_gib" in memory:
            held = f"{memory['weights_gib']:.1f} of it weights, {memory['cache_gib']:.1f} the cache"
        else:
            held = f"{memory['weights_and_optimizer_gib']:.1f} of it weights and optimizer"
        yield "GPU memory", f"{whose}{peak}{limit} GiB on each, {held}"
        if "memory_policy" in memory:
            yield "memory policy", f"{memory['memory_policy']}; {memory['done_again']:.0%} of the work is recomputed"
        yield "heaviest pack", f"{memory['heaviest_pack_tokens']:,} tokens, {memory['heaviest_pack_patches']:,} patches"


def _methods(facts: Facts) -> Iterator[Line]:
    """The capacity of the GPUs, one line per training method."""
    for fit in facts.get("methods", ()):
        speed = f", about {fit['tokens_per_s']:,.0f} tokens per second on each" if fit["tokens_per_s"] else ""
        host = f", {fit['host_gib']:.0f} GiB of host memory" if fit["host_gib"] else ""
        room = f"samples of up to {fit['longest']:,} tokens{speed}{host}" if fit["longest"] else "does not fit"
        yield fit["method"], room


def _time(facts: Facts) -> Iterator[Line]:
    time = facts.get("time") or {}
    if "time_unknown" in facts:
        yield "time", "no estimate without a known GPU; scripts/jobs.py status shows the time left after the first step"
    if "hours" in time:
        took = f"about {duration_text(3600 * time['hours'])}, {duration_text(time['start_s'])} of it startup"
        if "step_s" in time:
            yield (
                "seconds per step",
                f"about {time['step_s']:.1f}: {time['rollout_s']:.1f} to generate completions of "
                f"{time['answer_tokens']:,} tokens, {time['update_s']:.1f} for the update",
            )
        took += f", {duration_text(3600 * time['memory_hours'])} for memory" if time.get("memory_hours") else ""
        reached = f"{time['mfu']:.0%} of the peak of {time['gpu']} ({time['mfu_is']})"
        yield "time", f"{took}; {time['gpu_hours']:.2f} GPU hours, at {reached}"
    if "reading_s" in time:
        took = f"about {duration_text(time['start_s'] + time['reading_s'])} for startup and reading the prompts"
        writing = duration_text(time["writing_s_at_most"])
        most = f"at most {writing} more, if every answer has {time['max_tokens']:,} tokens"
        again = time["again_s_at_most"]
        most += f", and {duration_text(again)} for attempts after empty answers" if again else ""
        yield "time", f"{took}, {most}; on {time['gpu']}"
    if "decode_core_hours" in time:
        times = "every epoch" if time["decoded_again_every_epoch"] else "once"
        yield "decoding", f"about {duration_text(3600 * time['decode_core_hours'])} of one core, {times}"


def _disk(facts: Facts) -> Iterator[Line]:
    if "checkpoint_bytes" in facts:
        yield (
            "disk",
            f"a checkpoint {size_text(facts['checkpoint_bytes'])}, an export {size_text(facts['export_bytes'])}; "
            f"at most {facts['saves_kept']} of each at a time; {size_text(facts['free_bytes'])} free",
        )
    if "frame_bytes" in facts:
        yield "frames", f"{size_text(facts['frame_bytes'])}, resized"
    if "feature_bytes" in facts:
        share = f"kept for {facts['features_kept']:.0%} of the videos"
        yield "features", f"{size_text(facts['feature_bytes'])} of the frozen vision tower, {share}"


def _hardware(facts: Facts) -> Iterator[Line]:
    if facts.get("gpu_names"):
        kinds = ", ".join([*facts["gpu_names"], *facts.get("gpu_arch", [])])
        yield "GPUs", f"{facts.get('gpus', '')} {kinds}".strip()
    if "processes" in facts:
        yield "processes", f"{facts['processes']}, on {facts['cores']} cores"
