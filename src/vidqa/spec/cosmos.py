"""Convert a spec to the keys of cosmos-rl 0.4.7 and of TAO's evaluator, and report values that cannot be converted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vidqa.core.files import read_object
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec.keys import flat, leaves, nested
from vidqa.spec.models import EvaluateSpec, GrpoSpec, Spec, TrainSpec
from vidqa.spec.problems import NOT_SUPPORTED
from vidqa.spec.schedule import PARTS, rate_of, steps_per_epoch

# Keys of TAO and of our engine that cosmos-rl's configuration class lacks.
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
    "policy.quantization",
}
# Keys of an evaluation that TAO's evaluator does not read.
UNKNOWN_TO_EVALUATOR = {
    *("evaluation.generator", "evaluation.method", "generation.top_p", "generation.top_k"),
    *("evaluation.retries", "metrics.bertscore_layer", "metrics.similarity_model"),
    *("metrics.functions", "metrics.functions_timeout_s"),
    *(f"vision.{bound}" for bound in ("min_frames", "max_frames", "min_pixels", "max_pixels")),
    *(f"vision.{name}" for name in ("resized_height", "resized_width", "video_start", "video_end")),
}
EVALUATOR_METRICS = ("bleu", "rouge", "bertscore")
RESHARD = {"true": "always", "false": "never"}
MOST_NAMED = 5


def target_table(spec: Spec, train_samples: int | None = None) -> tuple[dict[str, Any], list[Problem]]:
    """The table for NVIDIA's container for the action of a spec, and the problems with it."""
    if isinstance(spec, TrainSpec) and not isinstance(spec, GrpoSpec):
        return cosmos_table(spec, train_samples)
    if isinstance(spec, EvaluateSpec):
        return _evaluator_table(spec)
    message = "only train and evaluate specs can be written for cosmos-rl"
    return {}, [NOT_SUPPORTED.at("--target", message, "use --target native")]


def _evaluator_table(spec: EvaluateSpec) -> tuple[dict[str, Any], list[Problem]]:
    """The table for TAO's evaluator, and a warning for each value that it does not support."""
    defaults = leaves("evaluate")
    values, problems = {}, []
    for path, value in flat(spec).items():
        if path.startswith("engine.") or path in UNKNOWN_TO_EVALUATOR:
            if value != defaults[path].default:
                problems.append(_lost(path, value))
        elif value is not None:
            values[path] = value
    values["metrics.names"] = [name for name in spec.metrics.names if name in EVALUATOR_METRICS]
    problems += [_lost("metrics.names", name) for name in spec.metrics.names if name not in EVALUATOR_METRICS]
    return nested(values), problems


def cosmos_table(spec: TrainSpec, train_samples: int | None = None) -> tuple[dict[str, Any], list[Problem]]:
    """The table for cosmos-rl, and the problems with it.

    cosmos-rl counts warm-up and validation in steps. With `train_samples` epochs are converted to steps exactly;
    without, warm-up becomes a share of the run and the validation frequency is cosmos-rl's default, with a warning.
    """
    values = {path: value for path, value in flat(spec).items() if value is not None and not _ours(path)}
    problems = [_lost(path, value) for path, value in flat(spec).items() if _is_lost(path, value)]
    reshard = spec.train.fsdp_reshard_after_forward
    values["train.fsdp_reshard_after_forward"] = RESHARD.get(reshard, reshard)
    if not _has_own_class(spec.policy.model_name_or_path):
        values["train.compile"] = False
        for path in ("policy.parallelism.cp_size", "policy.parallelism.pp_size"):
            if values[path] != 1:
                message = f"cosmos-rl asserts that it is 1 for Qwen3-VL; got {values[path]}"
                problems.append(NOT_SUPPORTED.at(path, message, "set it to 1, or use dp_shard_size"))
    if spec.train.optm_warmup_epochs is not None:
        epochs = spec.train.optm_warmup_epochs
        share = min(1.0, epochs / spec.train.epoch)
        per_epoch = None if train_samples is None else steps_per_epoch(spec, train_samples)
        values["train.optm_warmup_steps"] = share if per_epoch is None else round(epochs * per_epoch)
    if not values["train.ckpt.save_freq"]:
        del values["train.ckpt.save_freq"]
    if not values["validation.freq"]:
        del values["validation.freq"]
        if spec.validation.enable and train_samples is not None:
            values["validation.freq"] = spec.validation.freq_in_epoch * max(1, steps_per_epoch(spec, train_samples))
        elif spec.validation.enable:
            message = "cosmos-rl has no validation.freq_in_epoch and the steps of an epoch are not known"
            remedy = "set validation.freq in steps"
            problems.append(NOT_SUPPORTED.at("validation.freq_in_epoch", message, remedy, severity="warning"))
    resume = spec.train.resume
    if isinstance(resume, str) and os.path.isdir(Path(resume) / "policy"):
        values["train.resume"] = str(Path(resume) / "policy")
    if isinstance(rates := spec.train.optm_lr, dict) and not rates.keys().isdisjoint(PARTS):
        values["train.optm_lr"] = [rate_of(rates, part) or 0.0 for part in ("decoder", "vision")]
        if "merger" in rates:
            problems.append(_lost("train.optm_lr.merger", rates["merger"]))
    values["redis"] = str(spec.redis)
    return nested({path: value for path, value in values.items() if not _empty_custom(path, value)}), problems


def _has_own_class(model: str) -> bool:
    """Whether cosmos-rl has its own model class for this model, as for Qwen2.5-VL. Qwen3-VL runs in transformers'
    class, for which cosmos-rl asserts against torch.compile, context and pipeline parallelism."""
    if config := read_object(Path(model) / "config.json"):
        return config.get("model_type") == "qwen2_5_vl"
    return any(name in model for name in ("Cosmos-Reason1", "Qwen2.5-VL"))  # of the hub: recognized by its name


def _ours(path: str) -> bool:
    return path.startswith("engine.") or path in UNKNOWN_THERE


def _empty_custom(path: str, value: Any) -> bool:
    return value == "" and path.startswith(("custom.", "redis", "eth_ips"))


def _is_lost(path: str, value: Any) -> bool:
    """Whether the user changed a key that is neither written nor converted."""
    translated = ("train.optm_warmup_epochs", "validation.freq_in_epoch", "results_dir")
    if path == "policy.lora.init_lora_weights" and isinstance(value, str):
        return value.startswith("pissa_niter")
    return _ours(path) and path not in translated and value != leaves("train")[path].default


def _lost(path: str, value: Any) -> Problem:
    severity = "error" if path.startswith(("policy.lora", "engine.objective")) else "warning"
    message = f"cosmos-rl does not support {path} = {value!r}; it is left out"
    return NOT_SUPPORTED.at(path, message, "remove it, or use --target native", severity=severity)


def video_fps_problems(spec: TrainSpec) -> list[Problem]:
    """SPEC_NOT_SUPPORTED if custom.vision.fps is used and a record with a video lacks video_fps."""
    if spec.custom.vision.fps is None:
        return []
    problems = []
    for name in ("train_dataset", "val_dataset"):
        path = getattr(spec.custom, name).annotation_path
        if path:
            problems += missing_fps(path, f"custom.{name}.annotation_path")
    return problems


def missing_fps(path: str, key: str) -> list[Problem]:
    """SPEC_NOT_SUPPORTED if a record of `path` with a video lacks video_fps; a warning if `path` cannot be read."""
    from vidqa.data import open_source  # imports readers of tables and archives, which most scripts do not need
    from vidqa.data.problems import ProblemCollector

    collector = ProblemCollector(path)
    try:
        records = [row for _, row in open_source(path).rows(collector)]
    except ProblemError:
        records = []
    if not records or collector.errors:
        message = f"{path} cannot be read here, so its video_fps fields are not checked"
        return [NOT_SUPPORTED.at(key, message, "make sure that every video has video_fps", severity="warning")]
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
    return [NOT_SUPPORTED.at(path, message, "add video_fps to them, or use custom.vision.nframes")]
