"""Disk checks: space for weights to download, for all checkpoints and exports kept at once, and for the frame cache."""

from __future__ import annotations

import math
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vidqa.core import environment
from vidqa.core.cli import size_text
from vidqa.core.problem import Problem
from vidqa.data.problems import DISK_SPACE
from vidqa.data.storage import hub
from vidqa.families.weights import weight_bytes, weight_files
from vidqa.jobs.job_spec import model_names
from vidqa.planning.budget.autotune import least_policy
from vidqa.planning.budget.memory import BYTES_OF, state_bytes, training_setup
from vidqa.planning.budget.params import count_params
from vidqa.planning.feature_cache import feature_cache_share, frame_bytes, plans_by_view
from vidqa.preflight.environment_checks import existing
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.model_checks import architecture_parameters
from vidqa.spec.models import TrainSpec


@dataclass(frozen=True)
class DiskNeed:
    """Bytes to be written below an existing folder."""

    folder: Path
    bytes: int
    what: str


def disk(inputs: Inputs) -> list[Problem]:
    """Compare the bytes to be written on each disk with its free space."""
    inputs.require_visible(inputs.output_dir)
    inputs.facts["free_bytes"] = shutil.disk_usage(existing(inputs.output_dir)).free
    return disk_problems([*_fetched(inputs), *_saves(inputs)])


def disk_problems(all_needs: Iterable[DiskNeed]) -> list[Problem]:
    """ENV_DISK_SPACE for every disk with less free space than needed."""
    by_disk: dict[int, list[DiskNeed]] = defaultdict(list)
    for need in all_needs:
        by_disk[need.folder.stat().st_dev].append(need)
    problems = []
    for needs in by_disk.values():
        folder, needed = needs[-1].folder, sum(need.bytes for need in needs)
        free = shutil.disk_usage(folder).free
        if free < needed:
            parts = ", ".join(f"{size_text(need.bytes)} for {need.what}" for need in needs)
            message = f"{size_text(free)} free, about {size_text(needed)} needed: {parts}"
            problems.append(DISK_SPACE.at(folder, message))
    return problems


def _fetched(inputs: Inputs) -> list[DiskNeed]:
    """Hub weights that are not downloaded yet, if their index gives their size."""
    from huggingface_hub import constants

    names, cache = model_names(inputs.spec), existing(Path(constants.HF_HUB_CACHE).absolute())
    if inputs.offline_model is not None:
        inputs.facts["parameters"] = architecture_parameters(inputs.model_folder)
        missing = [inputs.model_folder]
    else:
        missing = [f for key, f in inputs.models.items() if hub.is_hub_name(names[key]) and not weight_files(f)]
    in_bf16 = BYTES_OF["bfloat16"]
    sizes = [weight_bytes(folder).bytes or in_bf16 * architecture_parameters(folder) for folder in missing]
    return [DiskNeed(cache, size, "weights to fetch") for size in sizes]


def _saves(inputs: Inputs) -> list[DiskNeed]:
    """Checkpoints and exports kept at one time."""
    train_spec = inputs.training
    if train_spec is None:
        return []
    every = inputs.parameters(train_spec)
    model = count_params(inputs.sizes, every)
    trained = model.every.trained
    checkpoint = int(state_bytes(model.every, training_setup(train_spec, least_policy(train_spec, model))))
    exported = [weight for weight in every if weight.added or train_spec.policy.lora is None]
    export = BYTES_OF[train_spec.train.param_dtype] * sum(parameter.numel for parameter in exported)
    saves = train_spec.train.ckpt
    one = checkpoint * saves.enable_checkpoint + export * saves.export_safetensors
    times = most_saves(train_spec)
    inputs.facts |= {"trainable_parameters": trained, "checkpoint_bytes": checkpoint, "export_bytes": export}
    inputs.facts["saves_kept"] = times
    return [
        DiskNeed(existing(inputs.output_dir), times * one, f"{times} checkpoint{'s' * (times > 1)}, exports included")
    ]


def most_saves(train_spec: TrainSpec) -> int:
    """The most saves kept at one time: the newest `max_keep`, the best one, and one being written before the oldest is
    removed; at most the total of the run, if the spec determines it."""
    saves, train = train_spec.train.ckpt, train_spec.train
    most_kept = max(saves.max_keep, 1) + 2 if saves.max_keep >= 0 else math.inf
    if saves.save_freq and train.max_num_steps:
        saves_made: float = train.max_num_steps // saves.save_freq + 1
    elif saves.save_freq_in_epoch and not saves.save_freq:
        saves_made = -(-train.epoch // saves.save_freq_in_epoch)
    else:
        saves_made = math.inf if saves.save_freq else 1
    fewest = min(most_kept, saves_made)
    return int(fewest) if math.isfinite(fewest) else 1


def frame_cache(inputs: Inputs) -> list[Problem]:
    """The size of the resized frames of every file, up to the limit of the cache."""
    engine = inputs.decoding
    if not engine.frame_cache_gb:
        raise Skip("the frame cache is off")
    inputs.facts["frame_bytes"] = frames = frame_bytes(plans_by_view(inputs.to_decode).values())
    folder = Path(os.path.expanduser(engine.frame_cache_dir)) if engine.frame_cache_dir else environment.cache_folder()
    place = existing(folder.absolute())
    limit, free = int(engine.frame_cache_gb * 1024**3), shutil.disk_usage(place).free
    features, problems = _features(inputs, limit)
    needed = min(frames + features, limit)
    if not os.access(place, os.W_OK):
        return [DISK_SPACE.at(place, "the folder cannot be written", severity="warning")]
    if free < needed:
        message = f"{size_text(free)} free; the frames take {size_text(needed)}"
        return [DISK_SPACE.at(place, message, severity="warning"), *problems]
    return problems


def _features(inputs: Inputs, limit: int) -> tuple[int, list[Problem]]:
    """Bytes of a frozen tower's features to be cached beside the frames, if the spec enables it."""
    train_spec = inputs.training
    if train_spec is None or not train_spec.engine.keep_features:
        return 0, []
    where, trained = "engine.keep_features", inputs.planned["train"].samples
    room = feature_cache_share(train_spec, inputs.family, inputs.sizes, trained, inputs.to_decode, limit)
    if isinstance(room, str):
        return 0, [DISK_SPACE.at(where, f"{room}, so nothing is kept", severity="warning")]
    cached_bytes = int(room.share * room.feature_bytes)
    inputs.facts |= {"feature_bytes": room.feature_bytes, "features_kept": room.share}
    if room.share == 1:
        return cached_bytes, []
    message = f"features of {room.share:.0%} of the videos fit: all take {size_text(room.feature_bytes)}"
    message += f" beside {size_text(room.frame_bytes)} of frames, the cache may hold {size_text(limit)}"
    return cached_bytes, [DISK_SPACE.at(where, message, severity="warning")]
