"""A training spec in the keys of cosmos-rl 0.4.7, with what stands in the way of running it there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vidqa.contract.problem import Problem
from vidqa.spec.keys import flat, leaves
from vidqa.spec.models import TrainSpec
from vidqa.spec.problems import NOT_IN_TARGET, VIDEO_FPS_REQUIRED
from vidqa.spec.schedule import steps_per_epoch

# Keys of TAO and of our engine that cosmos-rl's configuration class does not have.
UNKNOWN_THERE = {
    "custom.vision.cap_pixels_per_frame",
    "results_dir",
    "custom_script",
    "train.optm_warmup_epochs",
    "validation.freq_in_epoch",
    "validation.dataloader_num_workers",
    "validation.dataloader_prefetch_factor",
    "validation.enable_dataset_cache",
    "policy.parallelism.cp_rotate_method",
}
RESHARD = {"true": "always", "false": "never"}
MOST_NAMED = 5


def cosmos_table(spec: TrainSpec, train_samples: int | None = None) -> tuple[dict[str, Any], list[Problem]]:
    """The table that cosmos-rl reads, and the problems with it.

    cosmos-rl counts warm-up and validation in steps: with `train_samples` epochs become steps exactly; without, warm-up
    becomes a share of the run and the validation frequency is left to cosmos-rl, with a warning.
    """
    values = {path: value for path, value in flat(spec).items() if value is not None and not _ours(path)}
    problems = [_lost(path, value) for path, value in flat(spec).items() if _is_lost(path, value)]
    values["train.fsdp_reshard_after_forward"] = RESHARD.get(
        spec.train.fsdp_reshard_after_forward, spec.train.fsdp_reshard_after_forward
    )
    if spec.train.optm_warmup_epochs is not None:
        values["train.optm_warmup_steps"] = _warmup(spec, spec.train.optm_warmup_epochs, train_samples)
    if not values["train.ckpt.save_freq"]:
        del values["train.ckpt.save_freq"]
    if not values["validation.freq"]:
        del values["validation.freq"]
        if spec.validation.enable and train_samples is not None:
            values["validation.freq"] = spec.validation.freq_in_epoch * max(1, steps_per_epoch(spec, train_samples))
        elif spec.validation.enable:
            message = "cosmos-rl has no validation.freq_in_epoch and the steps of an epoch are not known"
            remedy = "set validation.freq in steps"
            problems.append(NOT_IN_TARGET.at("validation.freq_in_epoch", message, remedy, severity="warning"))
    resume = spec.train.resume
    if isinstance(resume, str) and os.path.isdir(Path(resume) / "policy"):
        values["train.resume"] = str(Path(resume) / "policy")
    values["redis"] = str(spec.redis)
    return _nested({path: value for path, value in values.items() if not _empty_custom(path, value)}), problems


def _ours(path: str) -> bool:
    return path.startswith("engine.") or path in UNKNOWN_THERE


def _empty_custom(path: str, value: Any) -> bool:
    return value == "" and path.startswith(("custom.", "redis", "eth_ips"))


def _is_lost(path: str, value: Any) -> bool:
    """A key that the user changed and that is neither written nor translated."""
    translated = ("train.optm_warmup_epochs", "validation.freq_in_epoch", "results_dir")
    if path == "policy.lora.init_lora_weights" and isinstance(value, str):
        return value.startswith("pissa_niter")
    return _ours(path) and path not in translated and value != leaves("train")[path].default


def _lost(path: str, value: Any) -> Problem:
    severity = "error" if path.startswith("policy.lora") else "warning"
    message = f"cosmos-rl has no {path} = {value!r}; it is left out"
    return NOT_IN_TARGET.at(path, message, "remove it, or use --target native", severity=severity)


def _warmup(spec: TrainSpec, epochs: float, train_samples: int | None) -> int | float:
    if train_samples is None:
        return min(1.0, epochs / spec.train.epoch)
    return round(epochs * steps_per_epoch(spec, train_samples))


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for path, value in values.items():
        *tables, last = path.split(".")
        inside = whole
        for name in tables:
            inside = inside.setdefault(name, {})
        inside[last] = value
    return whole


def video_fps_problems(spec: TrainSpec) -> list[Problem]:
    """SPEC_VIDEO_FPS_REQUIRED where custom.vision.fps is used and a record with a video does not give its own rate."""
    if spec.custom.vision.fps is None:
        return []
    found = []
    for name in ("train_dataset", "val_dataset"):
        path = getattr(spec.custom, name).annotation_path
        if path:
            found += _missing_fps(Path(path), f"custom.{name}.annotation_path")
    return found


def _missing_fps(path: Path, key: str) -> list[Problem]:
    records = read_records(path)
    if records is None:
        message = f"{path} cannot be read here, so its video_fps fields are not checked"
        return [VIDEO_FPS_REQUIRED.at(key, message, severity="warning")]
    missing = [
        index
        for index, record in enumerate(records)
        if isinstance(record, dict)
        and (record.get("video") or record.get("videos"))
        and (isinstance(record.get("video_fps"), bool) or not isinstance(record.get("video_fps"), int | float))
    ]
    if not missing:
        return []
    named = ", ".join(map(str, missing[:MOST_NAMED])) + (", ..." if len(missing) > MOST_NAMED else "")
    message = f"{len(missing)} of {len(records)} records have a video and no video_fps: index {named}"
    return [VIDEO_FPS_REQUIRED.at(path, message)]


def read_records(path: Path) -> list[Any] | None:
    """The records of a JSON or JSONL file as written; None where that is not possible."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        whole = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    return whole if isinstance(whole, list) else None
