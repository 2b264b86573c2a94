"""The keys of a spec as dotted paths: listing them, finding one, and naming the nearest known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic.fields import FieldInfo

from vidqa import actions
from vidqa.spec._field import Table
from vidqa.spec.models import Spec

SpecT = TypeVar("SpecT", bound=Spec)
# Where a key of NVIDIA's example files, or of an older cosmos-rl, stands here.
RENAMED = {
    "custom.dataset.annotation_path": "custom.train_dataset.annotation_path",
    "custom.dataset.media_path": "custom.train_dataset.media_path",
    "custom.dataset.system_prompt": "custom.system_prompt",
    "train.enable_validation": "validation.enable",
    "train.validation_step": "validation.freq",
    "train.validation_batch_per_replica": "validation.batch_size",
}
# Keys of those files that are not taken over, and what to do instead.
NOT_TAKEN = {
    "custom.dataset.path": (
        "a folder of Hugging Face's save_to_disk is not read here",
        "write its records as annotations.json (references/datasets.md) and name that",
    ),
    "custom.vision.min_pixels": ("the model's own lower bound holds here", "remove it"),
    "custom.vision.resized_height": ("frames keep their shape here", "bound them with custom.vision.max_pixels"),
    "custom.vision.resized_width": ("frames keep their shape here", "bound them with custom.vision.max_pixels"),
    "custom.vision.min_frames": (
        "fps takes at least the model's own least number of frames here",
        "remove it, or use custom.vision.nframes",
    ),
    "custom.vision.max_frames": (
        "fps takes more frames of a longer clip here, up to the model's own bound",
        "use custom.vision.nframes, or bound the clip with custom.vision.total_pixels",
    ),
    "custom.vision.video_start": ("whole files are read here", "cut the clips, and name the pieces"),
    "custom.vision.video_end": ("whole files are read here", "cut the clips, and name the pieces"),
}
# Parts of cosmos-rl's configuration that supervised fine-tuning never reads.
REINFORCEMENT_TABLES = ("rollout", "distillation", "vla", "policy.diffusers", "train.train_policy.overlong_reward")
REINFORCEMENT_KEYS = {
    "train": "coalesce_weight_sync logprob_dtype p2p_sync_pack_tensors p2r_sync_groups_per_round prefetch_payloads "
    "transfer_dtype",
    "policy": "is_diffusers",
    "validation": "max_response_length n_generation remote_reward repetition_penalty reward_function temperature top_k "
    "top_p use_remote_reward",
    "train.train_policy": "advantage_high advantage_low aipo_rho algo allowed_outdated_steps batch_size_per_optimize "
    "behav_imp_weight_cap bypass_reward collect_rollout_logprobs dpo_reference_policy entropy_coeff epsilon_high "
    "epsilon_low filter_reward_metric group_reward_calculation kl_beta loss_type lower_bound_ratio max_inflight_steps "
    "max_retry_for_on_policy max_token_len_per_mini_batch min_filter_prefix_tokens mu_iterations "
    "off_policy_masking_delta on_policy outdated_rollout_fetch_batch_size positive_nll_coef prompt_column_name "
    "reference_reset_interval remote_reward reset_optimizer_with_reference response_column_name reward_function "
    "rollout_as_token_ids temperature unbiased_advantage unbiased_kl_estimate unbiased_loss_max_tokens "
    "uncentralized_training use_decoupled_loss use_remote_reward use_rollout_logprobs_for_loss variant",
}


def table_of(field: FieldInfo) -> type[Table] | None:
    """The table class that a field holds, also where it may be absent; None for a leaf."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Table):
            return kind
    return None


def _walk(cls: type[Table], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in cls.model_fields.items():
        inner = table_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            yield from _walk(inner, f"{prefix}{name}.")


@cache
def leaves(action: str) -> Mapping[str, FieldInfo]:
    """Every key of an action's spec, by dotted path, in the order of the models."""
    return dict(_walk(actions.action(action).model, ""))


def flat(spec: Table) -> dict[str, Any]:
    """Every key of a validated spec with its value; a table that is absent is one key with None."""
    found: dict[str, Any] = {}

    def visit(part: Table, prefix: str) -> None:
        for name in type(part).model_fields:
            value = getattr(part, name)
            if isinstance(value, Table):
                visit(value, f"{prefix}{name}.")
            else:
                found[prefix + name] = value

    visit(spec, "")
    return found


def value_at(spec: Table, key: str) -> Any:
    value: Any = spec
    for name in key.split("."):
        value = getattr(value, name)
    return value


def with_values(spec: SpecT, values: Mapping[str, Any]) -> SpecT:
    """A copy of a spec with other values at some dotted keys."""
    tables = spec.model_dump()
    for key, value in values.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table[part]
        table[name] = value
    return type(spec).model_validate(tables)


def nearest(action: str, path: str) -> list[str]:
    """Up to three known keys that look like `path`: whole path first, then the last name alone."""
    known = [*leaves(action), *actions.action(action).shorthand]
    close = difflib.get_close_matches(path, known, n=3, cutoff=0.75)
    last = path.rsplit(".", 1)[-1]
    same = [name for name in known if name.rsplit(".", 1)[-1] == last]
    by_last = difflib.get_close_matches(last, {name.rsplit(".", 1)[-1] for name in known}, n=2, cutoff=0.7)
    like = [name for end in by_last for name in known if name.rsplit(".", 1)[-1] == end]
    return list(dict.fromkeys([*same, *close, *like]))[:3]


def is_reinforcement(path: str) -> bool:
    """True for a key of cosmos-rl that only its reinforcement learning reads."""
    if any(path == name or path.startswith(f"{name}.") for name in REINFORCEMENT_TABLES):
        return True
    return any(
        path.startswith(f"{name}.") and path.removeprefix(f"{name}.").split(".")[0] in keys.split()
        for name, keys in REINFORCEMENT_KEYS.items()
    )
