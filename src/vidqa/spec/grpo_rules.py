"""Rules of a GRPO spec that look at several keys at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vidqa.core.problem import Problem
from vidqa.spec import problems as codes
from vidqa.spec.models import GrpoSpec
from vidqa.spec.rules import training_rules

# What each name of a built-in reward means.
REWARDS = {name: name for name in ("accuracy", "format", "format_strict", "number", "distance", "token_f1")}
REWARDS["single_choice"] = "accuracy"  # cosmos-rl's name
REWARD_NAMES = "name accuracy, format, format_strict, number, distance, token_f1 or FILE.py:FUNCTION"  # remedy
USER_FUNCTION = re.compile(r"^(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)$")
MOST_RETRIES = 10  # rounds that dapo takes where max_retry_for_on_policy is -1


def reward_weights(value: Any) -> dict[str, float]:
    """The weight of each reward that a `reward_function` names: one name, a list (weight 1 each) or a table."""
    if isinstance(value, Mapping):
        return {str(name): float(weight) for name, weight in value.items()}
    return dict.fromkeys([value] if isinstance(value, str) else value, 1.0)


def temperature_of(spec: GrpoSpec) -> float:
    """The temperature of rollouts and of the trainer's softmax: the one that is set, else 1."""
    return spec.train.train_policy.temperature or spec.rollout.sampling_config.temperature or 1.0


def grpo_rules(spec: GrpoSpec) -> Iterator[Problem]:
    """What is wrong with a GRPO spec, whatever its data."""
    yield from training_rules(spec)
    yield from _groups(spec)
    yield from _temperatures(spec)
    yield from _unsupported(spec)
    policy, valid = spec.train.train_policy, spec.validation
    yield from _rewards("train.train_policy.reward_function", policy.reward_function, needed=True)
    yield from _rewards("validation.reward_function", valid.reward_function, needed=False)
    names = {REWARDS.get(name, name) for name in reward_weights(policy.reward_function)}
    metrics = policy.filter_reward_metric
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        if REWARDS.get(metric, metric) not in names:
            message = f"filter_reward_metric is {metric!r}, and reward_function has {', '.join(sorted(names))}"
            yield codes.VALUE.at("train.train_policy.filter_reward_metric", message, REWARD_NAMES)
    if policy.unbiased_loss_max_tokens and policy.loss_type != "seq-mean-token-sum":
        message = f"unbiased_loss_max_tokens is set, and loss_type is {policy.loss_type}"
        key = "train.train_policy.unbiased_loss_max_tokens"
        yield codes.NO_EFFECT.at(key, message, "remove it", severity="warning")
    if valid.enable and valid.n_generation > 1 and valid.temperature == 0:
        message = f"validation.n_generation is {valid.n_generation} and validation.temperature is 0: all are the same"
        yield codes.VALUE.at("validation.n_generation", message, "set it to 1, or raise validation.temperature")


def _groups(spec: GrpoSpec) -> Iterator[Problem]:
    """The size of groups, and how many of them fill a step."""
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
        yield codes.CONFLICT.at("rollout.sampling_config.temperature", message, "set one, or both alike")


def _unsupported(spec: GrpoSpec) -> Iterator[Problem]:
    """What training can do and GRPO cannot."""
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
        message = f"modules_to_save is {lora.modules_to_save} and kl_beta is above 0: adapters off is not the start"
        yield codes.CONFLICT.at("policy.lora.modules_to_save", message, "leave one of the two out")
    if lora is not None and lora.lora_path and spec.train.train_policy.kl_beta > 0:
        message = "lora_path is set and kl_beta is above 0: adapters off is not the start"
        remedy = "set kl_beta to 0, or merge the adapter (scripts/export.py RUN --merge) and train on that"
        yield codes.CONFLICT.at("policy.lora.lora_path", message, remedy)
    if lora is not None and lora.lora_dropout > 0:
        message = f"lora_dropout is {lora.lora_dropout:g}: the trainer would not be what drew the completions"
        yield codes.CONFLICT.at("policy.lora.lora_dropout", message, "set it to 0")


def _rewards(path: str, value: Any, *, needed: bool) -> Iterator[Problem]:
    weights = reward_weights(value)
    if needed and not weights:
        yield codes.VALUE.at(path, "no reward is named", REWARD_NAMES)
    for name in weights:
        if name not in REWARDS and not USER_FUNCTION.match(name):
            yield codes.VALUE.at(path, f"there is no reward {name!r}", REWARD_NAMES)
    built_in = [REWARDS[name] for name in weights if name in REWARDS]
    if twice := {name for name in built_in if built_in.count(name) > 1}:
        yield codes.VALUE.at(path, f"{', '.join(sorted(twice))} is named twice, under two names", "keep one of them")
