"""Keys of NVIDIA's example files and of cosmos-rl that stand elsewhere here, or that are refused with a reason."""

from __future__ import annotations

# Where a key of NVIDIA's example files, or of an older cosmos-rl, stands here.
RENAMED = {
    "custom.vision.num_frames": "custom.vision.nframes",
    "vision.num_frames": "vision.nframes",
    "custom.dataset.path": "custom.train_dataset.annotation_path",
    "custom.dataset.annotation_path": "custom.train_dataset.annotation_path",
    "custom.dataset.media_path": "custom.train_dataset.media_path",
    "custom.dataset.system_prompt": "custom.system_prompt",
    "train.enable_validation": "validation.enable",
    "train.validation_step": "validation.freq",
    "train.validation_batch_per_replica": "validation.batch_size",
}
# Keys that something else than a spec has: what, and what to write here.
_LOADER = "write a function that yields the records of this set, and let custom.loader name it: FILE.py:FUNCTION"
OF_THEIR_LOADERS = {"custom.dataset.dataset_root": _LOADER, "custom.dataset.meta_file": _LOADER}
NO_SPECS = {
    **{path: ("the loader of a recipe of the cookbook alone", _LOADER) for path in OF_THEIR_LOADERS},
    "parent_job_id": ("a workflow, not of a spec", "give it to build_spec.py: --parent-job-id JOB"),
    "automl_policy": ("a workflow, not of a spec", "give it to route_train.py: --automl auto, on or off"),
}
# Keys that earlier versions had; where the value is the default that they wrote, the key says nothing.
_VLLM = "remove it; vLLM's own server answers with an exported folder, see references/serving.md"
REMOVED: dict[str, tuple[object, str]] = {"engine.vllm.python": ("", _VLLM)}
# Tables and keys of cosmos-rl's own processes.
OF_THEIR_PROCESSES = ("profiler", "controller_execution_id")
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


def is_reinforcement(path: str) -> bool:
    """True for a key of cosmos-rl that only its reinforcement learning reads."""
    if any(path == name or path.startswith(f"{name}.") for name in REINFORCEMENT_TABLES):
        return True
    return any(
        path.startswith(f"{name}.") and path.removeprefix(f"{name}.").split(".")[0] in keys.split()
        for name, keys in REINFORCEMENT_KEYS.items()
    )
