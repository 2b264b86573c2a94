"""The page of a training: python -m vidqa.core.pages.training RUN_FOLDER

The engine writes it when a training ends, unless the process is killed. It can be written at any time, also while the
training runs or after a kill.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from vidqa.core.cli import duration_text, note
from vidqa.core.environment import redacted
from vidqa.core.files import objects_in, value_in, write_text
from vidqa.core.metric_names import ACCURACY, LOSS
from vidqa.core.pages.page import card_images, page, percent
from vidqa.core.pages.training_charts import main_chart, other_charts
from vidqa.core.pages.training_data import Training, is_number, other_run, read_training
from vidqa.core.run_folder import read_rollouts, rollout_files

MOST_LISTED = 200  # excluded samples, resumes, validations
WAITS_MUCH = 0.2  # share of the step time from which waiting for video is reported
CUT_OFF_MUCH = 0.1  # share of generated answers
SHOWN_GROUPS = 3  # groups of completions, from each end of the ranking
DRAWN_REWARD = "rollout/reward"
Posters = Callable[[dict[str, Any]], list[bytes]]  # JPEG or PNG images of a line's media. Raises ProblemError


def main(run: Path, posters: Posters = lambda line: []) -> int:
    """Write the page; returns the exit code. `posters` returns frames for completions."""
    training = read_training(run)
    if not training.plan and not training.events:
        note(f"{run} holds no training to report on")
        return 2
    path = training.run / "report.html"
    try:
        write_text(path, report(training, posters))
    except OSError as failed:
        note(f"the report cannot be written: {failed}")
        return 4
    note(f"report: {path}")
    return 0


def report(training: Training, posters: Posters = lambda line: []) -> str:
    """Render the HTML page, with frames from `posters` beside completions."""
    validations = _validations(training)
    other_facts = {key: value for key, value in training.facts.items() if key not in ("trainable", "resumes")}
    ends = validations[: MOST_LISTED // 2] + validations[-MOST_LISTED // 2 :]
    return page(
        "core/pages/training.html.j2",
        title=f"Training {training.run.name}",
        filters={"loss": _loss},
        training=training,
        sub=_sub(training),
        problems=training.problems[:MOST_LISTED],
        remarks=_remarks(training),
        tiles=_tiles(training),
        main=main_chart(training),
        charts=other_charts(training),
        validations=ends if len(validations) > MOST_LISTED else validations,
        generated=bool(training.points(ACCURACY)),
        validations_hidden=max(0, len(validations) - MOST_LISTED),
        groups=_last_groups(training.run, posters),
        parts=_parts(training),
        how=_key_settings(training),
        data=_data(training),
        left_out=training.left_out[:MOST_LISTED],
        resumes=[_resume(training, resume) for resume in training.resumes[-MOST_LISTED:]],
        spec=redacted(training.spec_text),
        made=redacted(json.dumps(other_facts, indent=2, ensure_ascii=False)),
    )


def _sub(training: Training) -> str:
    """State, step and model. The step is that of the last event: a run of an earlier version may have none."""
    status = training.status
    step = max((event["step"] for event in training.events), default=0) or status.get("step", 0)
    total = training.plan.get("total_steps") or status.get("total_steps", 0)
    model = value_in(training.spec, "policy.model_name_or_path")
    words = [str(status.get("state", "state unknown")), f"step {_count(step)} of {_count(total)}"]
    words += [f"model {model}"] if model else []
    return " · ".join([*words, *([f"written {status['updated']}"] if "updated" in status else [])])


def _tiles(training: Training) -> list[tuple[str, str, str, bool]]:
    loss, held_out = training.points("train/loss"), training.points(LOSS)
    tiles = []
    if reward := training.points(DRAWN_REWARD):
        tiles.append(("Reward", f"{reward[-1][1]:.3f}", f"mean of a step; first: {reward[0][1]:.3f}", False))
    elif loss:
        tiles.append(("Training loss", _loss(loss[-1][1]), f"first: {_loss(loss[0][1])}", False))
    if held_out:
        step, least = min(held_out, key=lambda point: point[1])
        note = "lowest, at the end"
        if least < held_out[-1][1]:
            note = f"lowest, after step {step:,.0f}; at the end {_loss(held_out[-1][1])}"
        tiles.append(("Validation loss", _loss(least), note, False))
    if accuracy := training.points(ACCURACY):
        step, most = max(accuracy, key=lambda point: point[1])
        note = "highest, at the end"
        if accuracy[-1][1] < most:
            note = f"highest, after step {step:,.0f}; at the end {percent(accuracy[-1][1])}"
        tiles.append(("Validation accuracy", percent(most), note, False))
    if seconds := training.points("perf/step_s"):
        tiles.append(("Step time", f"{median(y for _, y in seconds):.3g} s", f"median; {_spent(training)}", False))
    if speed := training.points("perf/tokens_per_s"):
        ranks = _ranks(training)
        over = f"median, over {ranks} process{'es' * (ranks != 1)}"
        mfu = training.points("perf/mfu")
        note = f"{over}; MFU {percent(median(y for _, y in mfu))}" if mfu else over
        tiles.append(("Tokens per second", f"{median(y for _, y in speed):,.0f}", note, False))
    if memory := training.points("perf/memory_gib"):
        tiles.append(("GPU memory", f"{max(y for _, y in memory):.1f} GiB", "peak, of rank 0", False))
    if parts := _parts(training):
        trained, whole = sum(p["trainable"] for p in parts), sum(p["parameters"] for p in parts)
        share = percent(trained / whole, 2 if trained < whole / 10 else 0) if whole else "–"
        tiles.append(("Trainable parameters", _short(trained), f"{share} of {_short(whole)}", False))
    if training.left_out:
        tiles.append(("Left out", f"{len(training.left_out):,}", "samples, listed below", True))
    return tiles


def _remarks(training: Training) -> list[str]:
    """Warnings for the reader: overfitting, data wait, truncated answers, unproved exports."""
    remarks = []
    held_out = training.points(LOSS)
    if len(held_out) > 2:
        step, least = min(held_out, key=lambda point: point[1])
        if held_out[-1][1] > least * 1.02:
            remarks.append(
                f"The validation loss was lowest after step {step:,.0f} and higher at the end, a sign of overfitting: "
                "train for fewer epochs, or on more data."
            )
    wait_s, step_s = (sum(y for _, y in training.points(key)) for key in ("perf/data_wait_s", "perf/step_s"))
    if step_s and wait_s / step_s > WAITS_MUCH:
        remarks.append(f"{percent(wait_s / step_s, 0)} of the step time was spent waiting for decoded video.")
    if (cut := training.points("val/truncated")) and cut[-1][1] > CUT_OFF_MUCH:
        remarks.append(f"{percent(cut[-1][1], 0)} of the answers in validation were truncated, and count as incorrect.")
    unproved = [export.name for export in training.exports if export.proof.startswith("unproved")]
    if unproved:
        remarks.append(f"The export {', '.join(unproved)} is unproved: see below.")
    return remarks


def _validations(training: Training) -> list[dict[str, Any]]:
    accuracy, cut = dict(training.points(ACCURACY)), dict(training.points("val/truncated"))
    losses = training.points(LOSS)
    least = min((loss for _, loss in losses), default=None)
    return [
        {"step": int(step), "loss": loss, "accuracy": accuracy.get(step), "cut": cut.get(step), "best": loss == least}
        for step, loss in losses
    ]


def _last_groups(run: Path, posters: Posters) -> list[dict[str, Any]]:
    """The groups with the highest and the lowest mean reward in the last step of reinforcement learning, with frames of
    their media; empty if the run drew no completions."""
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    last = 0
    for file in rollout_files(run):
        with suppress(ValueError):  # lines after damage are left out
            for line in read_rollouts(file):
                if line["step"] > last:
                    last = line["step"]
                    groups.clear()
                if line["step"] == last and not line.get("dropped"):
                    groups[line["slot"]].append(line)
    rewards = {slot: fmean(line["reward"] for line in group) for slot, group in groups.items()}
    ranked = sorted(groups, key=lambda slot: -rewards[slot])
    chosen = ranked if len(ranked) <= 2 * SHOWN_GROUPS else [*ranked[:SHOWN_GROUPS], *ranked[-SHOWN_GROUPS:]]
    return [
        {
            "lines": sorted(groups[slot], key=lambda line: -line["reward"]),
            "first": groups[slot][0],
            "mean": rewards[slot],
            **card_images(partial(posters, groups[slot][0])),
        }
        for slot in chosen
    ]


def _parts(training: Training) -> list[dict[str, Any]]:
    """Parameter counts by part of the model."""
    rows = objects_in(training.facts.get("trainable"))
    return [row for row in rows if is_number(row.get("parameters")) and is_number(row.get("trainable"))]


def _key_settings(training: Training) -> list[tuple[str, str]]:
    """The most important keys of the spec; the whole spec is at the end of the page."""
    spec = training.spec
    lora = value_in(spec, "policy.lora")
    adapters = None
    if isinstance(lora, dict):
        adapters = f"rank {lora.get('r')}, alpha {lora.get('lora_alpha')}, on {_listed(lora.get('target_modules'))}"
    rows = {
        "Model": value_in(spec, "policy.model_name_or_path"),
        "LoRA": adapters,
        "Frozen by pattern": _listed(value_in(spec, "policy.freeze_pattern")),
        "Learning rate": value_in(spec, "train.optm_lr"),
        "Schedule": value_in(spec, "train.optm_decay_type"),
        "Optimizer": value_in(spec, "train.optm_name"),
        "Weight decay": value_in(spec, "train.optm_weight_decay"),
        "Epochs": value_in(spec, "train.epoch"),
        "Effective batch": training.plan.get("effective_batch"),
        "Warm-up steps": training.plan.get("warmup_steps"),
        **_policy(spec.get("rollout"), value_in(spec, "train.train_policy")),
        "Frames per video": value_in(spec, "custom.vision.nframes"),
        "Frames per second": value_in(spec, "custom.vision.fps"),
        "Tokens per pack": training.plan.get("pack_tokens"),
        "Memory policy": training.facts.get("memory_policy") or training.facts.get("recompute"),
    }
    return [(name, _count(value)) for name, value in rows.items() if value not in (None, "", [])]


def _policy(rollout: Any, policy: Any) -> dict[str, Any]:
    """Sampling and reward settings of reinforcement learning; empty for other trainings."""
    if not isinstance(rollout, dict) or not isinstance(policy, dict):
        return {}
    rewards = policy.get("reward_function")
    if isinstance(rewards, dict):
        rewards = [f"{name} x {weight}" for name, weight in rewards.items()]
    return {
        "Variant": policy.get("variant"),
        "Rewards": _listed(rewards),
        "KL coefficient": policy.get("kl_beta"),
        "Completions per question": rollout.get("n_generation"),
        "Most tokens per completion": rollout.get("max_response_length"),
    }


def _data(training: Training) -> list[tuple[str, str]]:
    plan = training.plan
    rows = {
        "Annotations": value_in(training.spec, "custom.train_dataset.annotation_path"),
        "Training samples": plan.get("train_samples"),
        "Validation samples": plan.get("validation_samples"),
        "Tokens per epoch": plan.get("train_tokens_per_epoch"),
        "Supervised tokens per epoch": plan.get("supervised_tokens_per_epoch"),
        "Longest sample, tokens": plan.get("longest_sample_tokens"),
        "Steps per epoch": plan.get("steps_per_epoch"),
        "Total steps": plan.get("total_steps"),
        "Fingerprint": plan.get("data_fingerprint"),
    }
    return [(name, _count(value)) for name, value in rows.items() if value not in (None, "")]


def _resume(training: Training, resume: dict[str, Any]) -> dict[str, str]:
    other = other_run(resume, training.run)
    changed = resume.get("changed")
    words = ", ".join(map(str, changed)) if isinstance(changed, list) else ""
    lost = f"no checkpoint left of step {_count(resume.get('lost'))}"
    where = lost if "lost" in resume else Path(str(resume.get("from"))).name
    return {
        "step": _count(resume.get("step")),
        "from": str(resume.get("from")) if other else f"this run, {where}",
        "changed": words or "none",
    }


def _spent(training: Training) -> str:
    """The total time of steps: the mean of each event applies to all steps since the event before."""
    seconds, before = 0.0, 0.0
    for step, mean in training.points("perf/step_s"):
        seconds, before = seconds + mean * max(step - before, 0), step
    return f"{duration_text(seconds)} in all"


def _ranks(training: Training) -> int:
    whole, per_rank = training.points("perf/tokens_per_s"), training.points("perf/tokens_per_s_per_rank")
    return round(whole[-1][1] / per_rank[-1][1]) if whole and per_rank and per_rank[-1][1] else 1


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _short(count: float) -> str:
    """Format a parameter count: 8.77 B, 43.6 M."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
