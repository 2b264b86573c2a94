"""Rules of a training, supervised or by reinforcement, about combinations of keys."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem, ProblemError
from vidqa.spec import problems as codes
from vidqa.spec.adapter_keys import differences, is_adapter
from vidqa.spec.grpo_tables import REWARD_NAMES, REWARDS, USER_FUNCTION, reward_part, reward_weights
from vidqa.spec.models import GrpoSpec, TrainSpec
from vidqa.spec.policy_tables import Lora, Policy
from vidqa.spec.rules import VALIDATE, model_name_rules, output_rules, pattern_rules, required, vision_rules
from vidqa.spec.run_lookup import ADAPTER
from vidqa.spec.schedule import shape_problems

VIDEO_LENGTH = 40960  # tokens below which a video sample may not fit
HUB_NAME = re.compile(r"([\w.-]+/)?[\w.-]+")
VISION_TARGETS = ("all-linear", "attn.qkv", "attn.proj")
REFERENCE = "the KL reference, without adapters, would not be the initial model"


def train_rules(spec: TrainSpec) -> Iterator[Problem]:
    """Problems of a supervised training that can be found without the data."""
    yield from _training_rules(spec)
    batch, micro = spec.train.train_batch_per_replica, spec.train.train_policy.mini_batch
    if batch % micro:
        message = f"train_batch_per_replica {batch} is not a multiple of mini_batch {micro}"
        near = max(micro, batch // micro * micro)
        yield codes.CONFLICT.at("train.train_batch_per_replica", message, f"set it to {near}, or mini_batch to 1")


def _training_rules(spec: TrainSpec) -> Iterator[Problem]:
    """Problems common to all kinds of training."""
    data = spec.custom.train_dataset
    yield from output_rules("train.output_dir", spec.train.output_dir)
    yield from required("custom.train_dataset.annotation_path", data.annotation_path)
    yield from vision_rules(spec.custom.vision, "custom.vision")
    yield from model_name_rules("policy.model_name_or_path", spec.policy.model_name_or_path)
    yield from _optimizer(spec)
    yield from _validation(spec)
    yield from _uploads(spec)
    yield from _patterns(spec)
    if spec.policy.lora is not None:
        yield from _lora(spec.policy.lora)
    yield from _preference(spec)
    yield from _quantized_base(spec.policy)
    if spec.engine.share_video_prefix and not spec.engine.packing:
        message = "share_video_prefix is true and packing is false: videos are shared only inside packs"
        yield codes.CONFLICT.at("engine.share_video_prefix", message)
    if spec.train.fp8.enable_fp8 and spec.train.fsdp_offload:
        message = "enable_fp8 and fsdp_offload are both true: moving weights takes longer than fp8 saves"
        yield codes.CONFLICT.at("train.fp8.enable_fp8", message, "set one of them to false")
    if spec.train.fp8.enable_fp8 and spec.policy.lora is not None:
        message = "enable_fp8 is true, and policy.lora is set: it does not make frozen matrices faster"
        yield codes.CONFLICT.at("train.fp8.enable_fp8", message)
    if (most := spec.policy.model_max_length) < VIDEO_LENGTH:
        message = f"model_max_length is {most}; videos may need {VIDEO_LENGTH}"
        yield codes.MODEL_MAX_LENGTH.at("policy.model_max_length", message, severity="warning")


def _optimizer(spec: TrainSpec) -> Iterator[Problem]:
    rate = spec.train.optm_lr
    yield from shape_problems(rate)
    rates = [rate] if isinstance(rate, int | float) else list(rate.values()) if isinstance(rate, dict) else rate
    if not any(rates):
        yield codes.VALUE.at("train.optm_lr", f"the learning rate is {rate}", "set it, such as 1e-5")
    kind, highest = ("a full fine-tune", 1e-4) if spec.policy.lora is None else ("LoRA", 1e-3)
    remedy = "lower train.optm_lr: about 1e-5 for a full fine-tune, 1e-4 for LoRA"
    if isinstance(spec, GrpoSpec) or spec.engine.objective == "dpo":
        highest, kind = highest / 10, f"reinforcement learning and DPO ({kind})"
        remedy = "lower train.optm_lr: about 1e-6 for full training, 1e-5 for LoRA"
    if any(value > highest for value in rates):
        message = f"the learning rate {rate} is above {highest:g}, which is high for {kind}"
        yield codes.VALUE.at("train.optm_lr", message, remedy, severity="warning")
    if spec.train.optm_warmup_steps is not None and spec.train.optm_warmup_epochs is not None:
        yield codes.CONFLICT.at("train.optm_warmup_steps", "optm_warmup_steps and optm_warmup_epochs are both set")


def _validation(spec: TrainSpec) -> Iterator[Problem]:
    annotations, part = spec.custom.val_dataset.annotation_path, spec.train.train_policy.dataset.test_size
    valid = spec.validation
    if valid.enable and not annotations and part is None:
        yield codes.CONFLICT.at("validation.enable", "neither custom.val_dataset nor test_size is set", VALIDATE)
    if valid.enable and not valid.freq and not valid.freq_in_epoch:
        yield codes.VALUE.at("validation.freq_in_epoch", "freq and freq_in_epoch are both 0", "set one of them")
    if annotations and part is not None:
        message = "custom.val_dataset is used and test_size is not"
        yield codes.CONFLICT.at("train.train_policy.dataset.test_size", message, VALIDATE, severity="warning")
    if (annotations or part is not None) and not valid.enable:
        message = "there is a validation set and validation.enable is false"
        yield codes.CONFLICT.at("validation.enable", message, VALIDATE, severity="warning")


def _uploads(spec: TrainSpec) -> Iterator[Problem]:
    ckpt = spec.train.ckpt
    if ckpt.upload_s3:
        yield from required("train.ckpt.s3_bucket", ckpt.s3_bucket or "")
    if ckpt.upload_hf and not HUB_NAME.fullmatch(ckpt.hf_repo_name):
        message = f"{ckpt.hf_repo_name!r} is not organisation/name or name"
        yield codes.VALUE.at("train.ckpt.hf_repo_name", message, "correct it")


def _patterns(spec: TrainSpec) -> Iterator[Problem]:
    policy = spec.policy
    if policy.freeze_pattern is not None and policy.trainable_pattern is not None:
        yield codes.CONFLICT.at("policy.freeze_pattern", "freeze_pattern and trainable_pattern are both set")
    groups = {"policy.freeze_pattern": policy.freeze_pattern, "policy.trainable_pattern": policy.trainable_pattern}
    if policy.lora is not None:
        groups["policy.lora.r_pattern"] = list(policy.lora.r_pattern or {})
        groups["policy.lora.alpha_pattern"] = list(policy.lora.alpha_pattern or {})
    for path, patterns in groups.items():
        yield from pattern_rules(path, patterns or [])


def bitsandbytes_key(spec: TrainSpec) -> str | None:
    """The key that requires bitsandbytes; None if there is none."""
    if spec.policy.quantization == "nf4":
        return "policy.quantization"
    return "train.optm_name" if spec.train.optm_name == "AdamW8bit" else None


def _quantized_base(policy: Policy) -> Iterator[Problem]:
    key, precision, size = "policy.quantization", policy.quantization, policy.parallelism.cp_size
    if precision and policy.lora is None:
        message = f"quantization is {precision}, and policy.lora is absent: quantized matrices cannot be trained"
        yield codes.CONFLICT.at(key, message, "build the spec with --profile small-card, or set quantization = null")
    if precision and size > 1:
        message = f"quantization is {precision}, and cp_size is {size}"
        yield codes.CONFLICT.at(key, message, "set policy.parallelism.cp_size = 1, or quantization = null")


def _preference(spec: TrainSpec) -> Iterator[Problem]:
    engine = spec.engine
    if engine.objective != "dpo":
        for name in ("dpo_beta", "dpo_label_smoothing", "dpo_sft_weight"):
            if (value := getattr(engine, name)) != type(engine).model_fields[name].default:
                message = f'{name} is {value:g}, and engine.objective is "{engine.objective}"'
                remedy = "set engine.objective to dpo, or leave it out"
                yield codes.NO_EFFECT.at(f"engine.{name}", message, remedy, severity="warning")
    elif (size := spec.policy.parallelism.cp_size) > 1:
        message = f'cp_size is {size}, and engine.objective is "dpo": context-parallel GPUs have parts of an answer'
        yield codes.CONFLICT.at("policy.parallelism.cp_size", message, "set it to 1")


def _lora(lora: Lora) -> Iterator[Problem]:
    yield from _continued_adapter(lora)
    if not lora.target_modules:
        yield codes.VALUE.at("policy.lora.target_modules", "the list is empty", "set it, such as all-linear")
    targets = {lora.target_modules} if isinstance(lora.target_modules, str) else set(lora.target_modules)
    saved = set(lora.modules_to_save or [])
    clash = targets & saved
    if any("visual" in module for module in saved):  # the whole vision tower is fully trained
        clash |= targets & set(VISION_TARGETS)
    if clash:
        message = f"{', '.join(sorted(clash))} would get adapters and train in full through {sorted(saved)}"
        yield codes.CONFLICT.at("policy.lora.target_modules", message)


def _continued_adapter(lora: Lora) -> Iterator[Problem]:
    """Mismatches between policy.lora and the adapter that it continues, if that is on this machine."""
    path, name = "policy.lora.lora_path", lora.lora_path
    if not name:
        return
    folder = Path(os.path.expanduser(name))
    if "://" in name:
        remedy = "fetch it first: hf download ORG/NAME --local-dir FOLDER, then name FOLDER"
        yield codes.VALUE.at(path, f"{name} is not a folder", remedy)
    elif os.path.isdir(folder) and not is_adapter(folder):
        yield codes.MODEL.at(path, f"{name} contains no {ADAPTER}", "name the folder of an adapter, such as RUN/best")
    if not is_adapter(folder):
        return
    try:
        differing = differences(folder, lora)
    except ProblemError as unusable:
        yield from unusable.problems
        return
    for key, stored, value in differing:
        message = f"it is {value!r:.80}, and {stored!r:.80} in the adapter {name}"
        remedy = "leave it out: it is taken from the adapter; or leave lora_path out for a new one"
        yield codes.CONFLICT.at(f"policy.lora.{key}", message, remedy)


def grpo_rules(spec: GrpoSpec) -> Iterator[Problem]:
    """Problems of a GRPO spec that can be found without the data."""
    yield from _training_rules(spec)
    yield from _groups(spec)
    yield from _temperatures(spec)
    yield from _unsupported(spec)
    policy, valid = spec.train.train_policy, spec.validation
    yield from _rewards("train.train_policy.reward_function", policy.reward_function, needed=True)
    yield from _rewards("validation.reward_function", valid.reward_function, needed=False)
    names = {reward_part(name) for name in reward_weights(policy.reward_function)}
    metrics = policy.filter_reward_metric
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        if reward_part(metric) not in names:
            message = f"filter_reward_metric is {metric!r}, and reward_function has {', '.join(sorted(names))}"
            yield codes.VALUE.at("train.train_policy.filter_reward_metric", message, REWARD_NAMES)
    sums, longest = "seq-mean-token-sum", policy.unbiased_loss_max_tokens
    for key, value, needed, is_used in (
        ("engine.stop.kl_above", spec.engine.stop.kl_above, "kl_beta above 0", policy.kl_beta > 0),
        ("train.train_policy.filter_reward_metric", metrics, "variant dapo", policy.variant == "dapo"),
        ("train.train_policy.unbiased_loss_max_tokens", longest, f"loss_type {sums}", policy.loss_type == sums),
    ):
        if value and not is_used:
            remedy = f"set {needed}, or remove it"
            yield codes.NO_EFFECT.at(key, f"{key} is used only with {needed}", remedy, severity="warning")
    if valid.enable and valid.n_generation > 1 and valid.temperature == 0:
        message = f"validation.n_generation is {valid.n_generation} and validation.temperature is 0: all are the same"
        yield codes.VALUE.at("validation.n_generation", message, "set it to 1, or raise validation.temperature")


def _groups(spec: GrpoSpec) -> Iterator[Problem]:
    """Problems with the group size, and the number of groups per step."""
    size, batch = spec.rollout.n_generation, spec.train.train_batch_per_replica
    if size < 2:
        message = f"n_generation is {size}: a completion alone has no advantage over its group"
        yield codes.VALUE.at("rollout.n_generation", message, "set rollout.n_generation to 8")
    near = max(size, batch // size * size)
    if batch % size:
        message = f"train_batch_per_replica {batch} is not a multiple of rollout.n_generation {size}"
        yield codes.CONFLICT.at("train.train_batch_per_replica", message, f"set it to {near}")
    update = spec.train.train_policy.batch_size_per_optimize
    if update is not None and (batch % update or update % size):
        message = f"batch_size_per_optimize {update} must divide the batch {batch} and be a multiple of {size}"
        yield codes.CONFLICT.at("train.train_policy.batch_size_per_optimize", message, f"set it to {near}")
    answer, longest = spec.rollout.max_response_length, spec.policy.model_max_length
    if answer >= longest:
        message = f"max_response_length {answer} leaves no room for a prompt in model_max_length {longest}"
        yield codes.MODEL_MAX_LENGTH.at("rollout.max_response_length", message)


def _temperatures(spec: GrpoSpec) -> Iterator[Problem]:
    ours, drawn = spec.train.train_policy.temperature, spec.rollout.sampling_config.temperature
    if ours is not None and drawn is not None and ours != drawn:
        message = f"train.train_policy.temperature is {ours:g} and rollout.sampling_config.temperature is {drawn:g}"
        yield codes.CONFLICT.at("rollout.sampling_config.temperature", message, "set one, or both to the same value")


def _unsupported(spec: GrpoSpec) -> Iterator[Problem]:
    """Problems of features that supervised training supports and GRPO does not."""
    if spec.policy.parallelism.cp_size > 1:
        message = f"cp_size is {spec.policy.parallelism.cp_size}"
        yield codes.CONFLICT.at("policy.parallelism.cp_size", message, "set it to 1")
    rollouts = "the rollout model is a copy in 16 bits on the GPU"
    if precision := spec.policy.quantization:
        message = f"quantization is {precision}: {rollouts}"
        yield codes.CONFLICT.at("policy.quantization", message, "leave it out")
    elif spec.train.fsdp_offload:
        yield codes.CONFLICT.at("train.fsdp_offload", f"fsdp_offload is true: {rollouts}", "leave it out")
    if spec.train.fp8.enable_fp8:
        yield codes.CONFLICT.at("train.fp8.enable_fp8", "enable_fp8 is true", "set it to false")
    lora = spec.policy.lora
    if lora is not None and lora.modules_to_save and spec.train.train_policy.kl_beta > 0:
        message = f"modules_to_save is {lora.modules_to_save} and kl_beta is above 0: {REFERENCE}"
        yield codes.CONFLICT.at("policy.lora.modules_to_save", message, "leave one of the two out")
    if lora is not None and lora.lora_path and spec.train.train_policy.kl_beta > 0:
        message = f"lora_path is set and kl_beta is above 0: {REFERENCE}"
        remedy = "set kl_beta to 0, or merge the adapter (python scripts/export.py RUN --merge) and train on that"
        yield codes.CONFLICT.at("policy.lora.lora_path", message, remedy)
    if lora is not None and lora.init_lora_weights is False and spec.train.train_policy.kl_beta > 0:
        message = f"init_lora_weights is false and kl_beta is above 0: {REFERENCE}"
        yield codes.CONFLICT.at("policy.lora.init_lora_weights", message, "leave it out, or set kl_beta to 0")
    if lora is not None and lora.lora_dropout > 0:
        message = f"lora_dropout is {lora.lora_dropout:g}: the trainer would differ from the model that sampled"
        yield codes.CONFLICT.at("policy.lora.lora_dropout", message, "set it to 0")


def _rewards(path: str, value: Any, *, needed: bool) -> Iterator[Problem]:
    weights = reward_weights(value)
    if needed and not weights:
        yield codes.VALUE.at(path, "no reward is set", REWARD_NAMES)
    if weights and not any(weights.values()):
        yield codes.VALUE.at(path, "every reward has the weight 0", "give one of them another weight")
    for name in weights:
        if name not in REWARDS and not USER_FUNCTION.match(name):
            yield codes.VALUE.at(path, f"there is no reward {name!r}", REWARD_NAMES)
    parts = [reward_part(name) for name in weights]
    if twice := {part for part in parts if parts.count(part) > 1}:
        message = f"the metric {', '.join(sorted(twice))} would be of two rewards"
        yield codes.VALUE.at(path, message, "keep one of them, or rename your function")
