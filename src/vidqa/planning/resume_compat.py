"""Whether a run may resume from a checkpoint under its present spec: one rule, for preflight and for the engine.

A checkpoint records facts in three parts:

order      the samples of each step; may not change
weights    the meaning of the saved tensors: base model, trained parameters, adapters; may not change
spec       the keys of the spec; those that decide the model's input for a sample (SAMPLE_KEYS) may not change, the
           others may (such as the learning rate), and the user is told about those that affect learning
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vidqa.core.actions import action_for
from vidqa.core.files import content_hash, ends_of
from vidqa.core.problem import ProblemError
from vidqa.planning.budget.params import value_of
from vidqa.planning.pairs import learns_pairs
from vidqa.planning.samples import Sample
from vidqa.spec import effective_batch, load_training
from vidqa.spec.keys import flat, leaves
from vidqa.spec.models import TrainSpec

FIXED_PARTS = {"order": "the order of samples", "weights": "the meaning of the saved weights"}
# The following are prefixes of dotted keys.
SAMPLE_KEYS = ("custom.vision.", "custom.system_prompt", "custom.train_dataset.response_mode")
OBJECTIVE_KEYS = (  # below train.train_policy
    *("variant", "temperature", "epsilon_", "lower_bound_ratio", "kl_beta", "mu_iterations", "batch_size_per_optimize"),
    *("loss_type", "unbiased_", "behav_imp_weight_cap", "reward_function", "filter_reward_metric", "overlong_reward"),
)
# Keys that change only where, how fast or how often something happens, or whose effect is part of `order` or `weights`.
NO_EFFECT_ON_LEARNING = (
    *("train.output_dir", "train.timestamp", "train.resume", "train.ckpt.", "train.compile", "train.train_policy."),
    *("train.train_batch_per_replica", "train.fsdp_reshard_after_forward", "logging.", "policy.", "engine."),
    *("custom.train_dataset.", "custom.val_dataset.annotation_path", "custom.val_dataset.media_path"),
    *("validation.freq", "validation.batch_size", "validation.val_before_train"),
)
# Exceptions: keys of those tables that do affect learning, or the score that chooses the best checkpoint.
LEARNED_EXCEPTIONS = (
    *("policy.lora.lora_dropout", "engine.validation_", "engine.balance", "engine.dpo_"),
    *("engine.shuffle_options", "engine.truncated"),
    *(f"train.train_policy.{name}" for name in OBJECTIVE_KEYS),
)


def order_facts(spec: TrainSpec, samples: Sequence[Sample], data_fingerprint: str) -> dict[str, Any]:
    """The part `order`: the facts that decide the samples of every step. `samples` are the usable training samples."""
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
    """The part `weights`: the base model, names and shapes of the trainable parameters (`trained`), and the adapters.
    `base_model` is the `weights_hash` of the base model; None, if it is unknown, leaves it out."""
    lora = spec.policy.lora
    # None of these changes the meaning of saved tensors, but the reference of DPO is computed with the first values.
    ignored = {"lora_dropout", "lora_path", *(() if learns_pairs(spec) else ("init_lora_weights",))}
    shapes = sorted((name, list(shape)) for name, shape in trained)
    return {
        **({} if base_model is None else {"base_model": base_model}),
        "trained": hashlib.sha256(json.dumps(shapes).encode()).hexdigest(),
        "base_precision": spec.policy.quantization,
        "lora": lora.model_dump(exclude=ignored) if lora else None,
    }


def compare(
    checkpoint: Path, before: Mapping[str, Any], now: Mapping[str, Any], model_dir: Path, parameters: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Compare the facts of a checkpoint (`before`) with those of the run that resumes (`now`) from the base model in
    `model_dir`, which has `parameters` of these names. `now` may lack a part that is not known yet. Returns (changes
    that forbid resuming, other changes that affect learning), as text."""
    weights = before.get("weights", {})
    if (recorded_hash := weights.get("base_model")) and same_weights(recorded_hash, model_dir):
        before = {**before, "weights": {**weights, "base_model": weights_hash(model_dir)}}
    adapted = {name.partition(".lora_")[0] for name in parameters if ".lora_" in name}
    parts = {part: title for part, title in FIXED_PARTS.items() if part in now}
    refused = {title: changes(before.get(part, {}), now[part], adapted) for part, title in parts.items()}
    recorded = _recorded_spec(checkpoint, before)
    differences = ["unknown: the checkpoint does not say with which spec it was trained"]
    if recorded is not None:
        refused["the input of a sample"], differences = spec_changes(recorded, now["spec"])
    return [f"{title} would change: {', '.join(changed)}" for title, changed in refused.items() if changed], differences


def changes(before: Mapping[str, Any], now: Mapping[str, Any], adapted: Collection[str]) -> list[str]:
    """The changes of one part, as text; `adapted` are the names of modules with adapters. A fact that an earlier
    version did not record counts as false; a key of adapters that only the checkpoint has is ignored."""
    texts = []
    for key, value in now.items():
        was = before.get(key)
        if isinstance(was, Mapping) and isinstance(value, Mapping):
            was = {name: was[name] for name in value if name in was}
        if _effect(was, adapted) == _effect(value, adapted) or (was is None and value is False):
            continue
        if isinstance(was, Mapping) and isinstance(value, Mapping):
            names = [name for name in value if value[name] != was.get(name)]
            was, value = ({name: fact.get(name) for name in names} for fact in (was, value))
        texts.append(f"{key}: {was!r} -> {value!r}")
    return texts


def _effect(fact: Any, adapted: Collection[str]) -> Any:
    """A fact without the order of names in it: adapters on q_proj and v_proj equal those on v_proj and q_proj. Ranks
    and alphas are those of each `adapted` module."""
    if not isinstance(fact, Mapping):
        return fact
    sizes = {"r": "r_pattern", "lora_alpha": "alpha_pattern"}
    of_modules = {
        name: [value_of(module, fact.get(sizes[name]), fact.get(name)) for module in adapted] for name in sizes
    }
    without_order = {name: set(map(str, value)) if isinstance(value, list) else value for name, value in fact.items()}
    return without_order | of_modules | dict.fromkeys(sizes.values())


def spec_facts(spec: TrainSpec) -> dict[str, Any]:
    """The part `spec`: dotted keys and values of a TrainSpec, without keys that the engine ignores."""
    fields: Mapping[str, Any] = leaves(action_for(spec).name)
    ignored = {key for key, field in fields.items() if (field.json_schema_extra or {}).get("x-native") == "no effect"}
    return {key: value for key, value in flat(spec).items() if key not in ignored}


def spec_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare two `spec_facts`. Returns (changes of samples, other changes that affect learning), as text. A key that
    is in only one of them is left out."""
    differing = {key: (before[key], value) for key, value in now.items() if key in before and before[key] != value}
    texts = {key: f"{key}: {was!r} -> {value!r}" for key, (was, value) in differing.items()}
    refused = [text for key, text in texts.items() if key.startswith(SAMPLE_KEYS)]
    without_effect = {
        key for key in texts if key.startswith(NO_EFFECT_ON_LEARNING) and not key.startswith(LEARNED_EXCEPTIONS)
    }
    learned = [text for key, text in texts.items() if key not in without_effect and not key.startswith(SAMPLE_KEYS)]
    return refused, learned


def _recorded_spec(checkpoint: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `spec_facts` of a checkpoint. A checkpoint of an earlier version has none: then those of the spec in its run
    folder, or None if there is no readable one."""
    recorded = facts.get("spec")
    if isinstance(recorded, dict):
        return recorded
    spec_path = checkpoint.parent.parent / "spec.toml"
    try:
        return spec_facts(load_training(spec_path)) if spec_path.is_file() else None
    except ProblemError:
        return None


def weights_hash(folder: Path, base: Path | None = None) -> str:
    """SHA-256, in hex, over names and contents of the safetensors files of a model folder; for an adapter also over
    those of its `base`. Raises OSError."""
    paths = _weight_files(folder, base)
    with ThreadPoolExecutor(4) as threads:
        hashes = list(zip((path.name for path in paths), threads.map(content_hash, paths), strict=True))
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


def same_weights(recorded: object, folder: Path, base: Path | None = None) -> bool:
    """Whether `recorded`, a hash from a run or checkpoint, matches a folder's weights, by the current `weights_hash` or
    by that of earlier versions. Raises OSError."""
    return recorded in (weights_hash(folder, base), _earlier_weights_hash(folder, base))


def _weight_files(folder: Path, base: Path | None) -> list[Path]:
    return sorted(path for model in (folder, base) if model for path in model.glob("*.safetensors"))


def _earlier_weights_hash(folder: Path, base: Path | None) -> str:
    """The hash of versions that read only the size, the beginning and the end of every file."""
    digest = hashlib.sha256()
    for path in _weight_files(folder, base):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        digest.update(ends_of(path, size))
    return digest.hexdigest()
