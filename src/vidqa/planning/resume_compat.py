"""What may not change where a run goes on from a checkpoint: one rule, for preflight and for the engine.

`order` decides which samples a step takes, `weights` what the saved tensors mean, and of the spec some keys what a
sample is: those may not change. Other keys may, such as the learning rate; whoever changes them is told. A checkpoint
records all three.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vidqa.core.actions import action_for
from vidqa.core.files import content_hash, ends_of
from vidqa.core.problem import ProblemError
from vidqa.planning.samples import Sample
from vidqa.spec import effective_batch, load_training
from vidqa.spec.keys import flat, leaves
from vidqa.spec.models import TrainSpec

NO_MEANING = ("lora_dropout", "lora_path")  # of policy.lora, for tensors that are saved
FACT_NAMES = {"order": "the order of samples", "weights": "what the saved weights mean"}
THREADS = 4  # files that are hashed beside each other
SAMPLE_RULE = "what is seen of a sample"
SAMPLE_KEYS = ("custom.vision.", "custom.system_prompt", "custom.train_dataset.response_mode")
OBJECTIVE = (
    *("variant", "temperature", "epsilon_", "lower_bound_ratio", "kl_beta", "mu_iterations", "batch_size_per_optimize"),
    *("loss_type", "unbiased_", "behav_imp_weight_cap", "reward_function", "filter_reward_metric", "overlong_reward"),
)
# Keys that change where, how fast or how often something is done, and those whose outcome `order` and `weights` hold.
NO_EFFECT_ON_LEARNING = (
    *("train.output_dir", "train.timestamp", "train.resume", "train.ckpt.", "train.compile", "train.train_policy."),
    *("train.train_batch_per_replica", "train.fsdp_reshard_after_forward", "logging.", "policy.", "engine."),
    *("custom.train_dataset.", "custom.val_dataset.annotation_path", "custom.val_dataset.media_path"),
    *("validation.freq", "validation.batch_size", "validation.val_before_train"),
)
# Of these tables, what does change it or its measure.
LEARNED_EXCEPTIONS = (
    *("policy.lora.lora_dropout", "engine.validation_", "engine.balance", "engine.dpo_"),
    *("engine.shuffle_options", "engine.truncated"),
    *(f"train.train_policy.{name}" for name in OBJECTIVE),
)


def order_facts(spec: TrainSpec, samples: Sequence[Sample], data_fingerprint: str) -> dict[str, Any]:
    """What decides the samples of every step of a TrainSpec, given the training samples that are used."""
    loading = spec.train.train_policy
    return {
        "data_fingerprint": data_fingerprint,
        "samples": len(samples),
        "tokens": sum(sample.length for sample in samples),
        "effective_batch": effective_batch(spec),
        "seed": loading.dataloader_seed,
        "shuffle": loading.dataloader_shuffle,
        "drop_last": loading.dataloader_drop_last,
        "share_video_prefix": spec.engine.share_video_prefix,
    }


def weights_facts(
    spec: TrainSpec, trained: Iterable[tuple[str, Sequence[int]]], base_model: str | None
) -> dict[str, Any]:
    """What gives saved tensors their meaning: the base model (`weights_hash`), names and shapes of the parameters that
    train, and the adapters. A base model that is not known (None) is left out."""
    lora = spec.policy.lora
    named = sorted((name, list(shape)) for name, shape in trained)
    return {
        **({} if base_model is None else {"base_model": base_model}),
        "trained": hashlib.sha256(json.dumps(named).encode()).hexdigest(),
        "base_precision": spec.policy.quantization,
        "lora": {key: value for key, value in lora.model_dump().items() if key not in NO_MEANING} if lora else None,
    }


def compare(checkpoint: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Of a checkpoint's facts `before` and those of a run (`order`, `weights`, `spec`; a part that is unknown is left
    out) what may not differ and does, and the keys that differ and change what is learned, both as text."""
    refused = {what: changes(before.get(part, {}), now[part]) for part, what in FACT_NAMES.items() if part in now}
    recorded = _recorded_spec(checkpoint, before)
    differences = ["unknown: the checkpoint does not say with which spec it was trained"]
    if recorded is not None:
        refused[SAMPLE_RULE], differences = spec_changes(recorded, now["spec"])
    return [f"{what} would change: {', '.join(changed)}" for what, changed in refused.items() if changed], differences


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of a part of a checkpoint's facts is another now, as text. What it does not know yet counts as false."""
    differing = [(key, before.get(key), value) for key, value in now.items() if before.get(key) != value]
    return [f"{key}: {was!r} -> {value!r}" for key, was, value in differing if not (was is None and value is False)]


def spec_facts(spec: TrainSpec) -> dict[str, Any]:
    """The keys of a TrainSpec that a checkpoint records: all that have an effect, with their values."""
    fields: Mapping[str, Any] = leaves(action_for(spec).name)
    idle = {key for key, field in fields.items() if (field.json_schema_extra or {}).get("x-native") == "no effect"}
    return {key: value for key, value in flat(spec).items() if key not in idle}


def spec_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Of two `spec_facts` what may not differ and does, and what differs and changes what is learned, both as text. A
    key that one of them does not have is left out."""
    differing = {key: (before[key], value) for key, value in now.items() if key in before and before[key] != value}
    texts = {key: f"{key}: {was!r} -> {value!r}" for key, (was, value) in differing.items()}
    refused = [text for key, text in texts.items() if key.startswith(SAMPLE_KEYS)]
    idle = {key for key in texts if key.startswith(NO_EFFECT_ON_LEARNING) and not key.startswith(LEARNED_EXCEPTIONS)}
    return refused, [text for key, text in texts.items() if key not in idle and not key.startswith(SAMPLE_KEYS)]


def _recorded_spec(checkpoint: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a checkpoint's facts say of the spec it was trained with; one of an earlier version does not say it, and the
    spec of its run folder is taken. None where there is neither."""
    recorded = facts.get("spec")
    if isinstance(recorded, dict):
        return recorded
    written = checkpoint.parent.parent / "spec.toml"
    try:
        return spec_facts(load_training(written)) if written.is_file() else None
    except ProblemError:
        return None


def weights_hash(folder: Path, base: Path | None = None) -> str:
    """Names the weights of a model folder (with `base`, of an adapter on it): a hash over every weight file's name and
    whole content. Raises OSError."""
    paths = _weight_files(folder, base)
    with ThreadPoolExecutor(THREADS) as threads:
        named = list(zip((path.name for path in paths), threads.map(content_hash, paths), strict=True))
    return hashlib.sha256(repr(named).encode()).hexdigest()


def same_weights(recorded: object, folder: Path, base: Path | None = None) -> bool:
    """Whether a folder holds the weights that a record names; earlier versions hashed each file's size and ends."""
    return recorded in (weights_hash(folder, base), _hash_of_ends(folder, base))


def upgraded_facts(recorded: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The `weights_facts` of a checkpoint, also of an earlier version's, whose base model is in `folder`."""
    base = recorded.get("base_model")
    return {**recorded, "base_model": weights_hash(folder)} if base and same_weights(base, folder) else recorded


def _weight_files(folder: Path, base: Path | None) -> list[Path]:
    return sorted(p for place in (folder, base) if place for p in place.glob("*.safetensors"))


def _hash_of_ends(folder: Path, base: Path | None) -> str:
    digest = hashlib.sha256()
    for path in _weight_files(folder, base):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        digest.update(ends_of(path, size))
    return digest.hexdigest()
