"""Compatibility with keys of cosmos-rl and TAO. Many are accepted without effect, so that a user's file can be used
unchanged; others are renamed, or refused with a reason."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import Field, create_model

from vidqa.spec._field import Count, HeldOut, NotNegative, Positive, Share, Table, TextOrNull, key, null_is

T = TypeVar("T", bound=Table)
Fp8Recipe = Literal["dynamic_scaling", "delayed_scaling"]
Objective = Literal["sft", "dpo"]
Granularity = Literal["rowwise", "tensorwise"]
OneOrNull = Annotated[int, Field(ge=1), null_is(1)]
TrueOrNull, FalseOrNull = Annotated[bool, null_is(True)], Annotated[bool, null_is(False)]
PositiveOrNull = Annotated[float, Field(gt=0)] | None
BatchStrategy = Literal["prefer_first", "prefer_closest"]
PipelineSchedule = Literal["1F1B", "GPipe", "Interleaved1F1B"]

# One row per key: the tables that have it, name, type, default, title, description, and optionally the key to use instead.
# fmt: off
NO_EFFECT: list[tuple[Any, ...]] = [
    ("Fp4", "fp4_recipe", Fp8Recipe, "dynamic_scaling", "FP4 scaling", "Computation of FP4 scales."),
    ("Fp4", "quant_recipe", Granularity, "rowwise", "FP4 granularity", "Scope of one FP4 scale."),
    ("Dataset", "name", str, "", "Dataset name", "Name in a dataset registry.", "custom.*"),
    ("Dataset", "subset", TextOrNull, "", "Dataset subset", "Subset of a named dataset."),
    ("Dataset", "revision", TextOrNull, "", "Dataset revision", "Revision of a named dataset."),
    ("Dataset", "split", str | list[str], "train", "Dataset split", "Split of a named dataset."),
    ("Dataset", "local_dir", str, "", "Dataset folder", "Folder of a named dataset.", "custom.*"),
    ("ValidationDataset", "test_size", HeldOut, None, "Held-out part", "Not read.", "train.train_policy.dataset.test_size"),
    ("TrainPolicy", "trainer_type", Literal["sft"], "sft", "Trainer", "Trainer of the training type."),
    ("TrainPolicy GrpoPolicy", "dataloader_prefetch_factor", Positive | None, None, "Prefetch", "Batches ahead per worker."),
    ("TrainPolicy GrpoPolicy", "dataloader_batch_size", OneOrNull, 1, "Fetch size", "Samples per controller request."),
    ("TrainPolicy GrpoPolicy", "dataloader_broadcast", bool, False, "Broadcast batches", "Read on one rank and send to the others."),
    ("TrainPolicy GrpoPolicy", "data_dispatch_as_rank_in_mesh", bool, False, "Shard by mesh rank", "Each rank of the mesh reads its share of the data."),
    ("TrainPolicy GrpoPolicy", "enable_dataset_cache", bool, False, "Sample cache", "Keep processed samples on disk.", "engine.frame_cache_gb"),
    ("TrainPolicy GrpoPolicy", "conversation_column_name", str, "conversations", "Conversation field", "Field with the turns; both common names are read."),
    ("TrainPolicy", "enable_dp_load_balancing", bool, False, "Balance batches", "Dynamic batches of equal size.", "engine.packing"),
    ("TrainPolicy GrpoPolicy", "load_balanced_pool_size", Positive, 32, "Pool size", "Samples to choose from."),
    ("TrainPolicy GrpoPolicy", "load_balanced_max_tokens_for_batch", Positive | None, None, "Tokens per batch", "Token budget of a batch.", "engine.pack_tokens"),
    ("TrainPolicy GrpoPolicy", "load_balanced_batching_strategy", BatchStrategy, "prefer_closest", "Batching strategy", "Choice of samples."),
    ("TrainPolicy GrpoPolicy", "load_balanced_batches_per_optimizer_step", Positive, 1, "Batches per step", "Dynamic batches per optimizer step."),
    ("GrpoPolicy", "trainer_type", Literal["grpo"], "grpo", "Trainer", "Trainer of the training type."),
    ("GrpoPolicy", "algo", Literal["grpo"], "grpo", "Algorithm", "An older name of the variant.", "train.train_policy.variant"),
    ("GrpoPolicy", "mini_batch", Positive, 2, "Micro-batch", "Completions per forward pass; packs hold what fits.", "engine.pack_tokens"),
    ("GrpoPolicy", "min_filter_prefix_tokens", Positive | None, None, "Shared prefix", "Tokens that completions share; token ids are kept."),
    ("GrpoPolicy", "allowed_outdated_steps", Count, 4, "Outdated steps", "Rollouts always use the current weights."),
    ("GrpoPolicy", "on_policy", bool, False, "On policy", "Rollouts always use the current weights."),
    ("GrpoPolicy", "outdated_rollout_fetch_batch_size", Count, 0, "Outdated rollouts", "Rollouts always use the current weights."),
    ("GrpoPolicy", "max_inflight_steps", Positive | None, None, "Steps in flight", "Rollout and update take turns."),
    ("GrpoPolicy", "collect_rollout_logprobs", bool, False, "Rollout log-probabilities", "Always collected."),
    ("GrpoPolicy", "rollout_as_token_ids", bool, False, "Token ids", "Token ids are always kept."),
    ("GrpoPolicy", "advantage_low", float, -5.0, "Lowest advantage", "Advantages are not clipped."),
    ("GrpoPolicy", "advantage_high", float, 5.0, "Highest advantage", "Advantages are not clipped."),
    ("GrpoPolicy", "dataloader_drop_last", bool, True, "Drop the last partial batch", "Batches continue across epochs."),
    ("GrpoPolicy", "prompt_column_name", str, "", "Prompt field", "Field with the prompt; the record format is detected."),
    ("GrpoPolicy", "response_column_name", str, "", "Reference field", "Field with the reference; the record format is detected."),
    ("GrpoPolicy", "balance_dp_token", bool, False, "Balance the loss by tokens", "Token weights cover the whole step and all ranks."),
    ("GrpoPolicy", "max_token_len_per_mini_batch", Positive | None, None, "Tokens per micro-batch", "Token budget of a micro-batch.", "engine.pack_tokens"),
    ("GrpoPolicy", "enable_dp_load_balancing", bool, False, "Balance batches", "Questions are always spread by cost."),
    ("Rollout", "batch_size", Positive, 1, "Rollout batch", "Questions per engine call; as many as fit are answered together."),
    ("Rollout", "backend", Literal["vllm", "vllm_async", "trtllm", "native"], "native", "Rollout engine", "Rollouts use the native generator."),
    ("Rollout", "mode", Literal["sync", "async"], "sync", "Rollout mode", "Rollout and update take turns."),
    ("Rollout", "gpu_memory_utilization", Share, 0.8, "Rollout memory", "The KV cache fits the completions of a step.", "engine.gpu_memory_gib"),
    ("Rollout", "enable_chunked_prefill", bool, False, "Chunked prefill", "A vLLM option."),
    ("Rollout", "enforce_eager", bool, True, "No graphs", "A vLLM option."),
    ("Rollout", "include_stop_str_in_output", bool, False, "Stop string", "The token that ends the turn is trained on."),
    ("Rollout", "n_generation_mini_batch", Positive | None, None, "Completions at a time", "As many as fit are generated together."),
    ("Rollout", "n_generation_to_batch", bool, False, "Completions as a batch", "Always."),
    ("Rollout", "vllm_use_flashinfer", bool, False, "FlashInfer", "A vLLM option."),
    ("Rollout", "prefetch_rollout", bool, False, "Prefetch", "Rollouts always use the current weights."),
    ("Rollout", "prefetch_queue_maxsize", Positive, 2, "Prefetch queue", "Rollouts always use the current weights."),
    ("Rollout", "broadcast_all_params", bool, False, "Broadcast", "Every parameter is copied after every update."),
    ("Rollout", "async_r2r_sync", Literal["disabled", "generation", "inference"], "disabled", "Asynchronous sync", "Weights are copied on each rank."),
    ("Rollout", "r2r_sync_bucket_size_bytes", Positive, 536870912, "Sync bucket", "Weights are copied on each rank."),
    ("Rollout", "r2r_sync_pack_tensors", bool, False, "Sync packing", "Weights are copied on each rank."),
    ("Rollout", "completion_admission", bool, False, "Admission", "A controller option."),
    ("Rollout", "parallelism", dict[str, int | bool | str], {}, "Rollout parallelism", "Each rank has the whole rollout model.", "policy.parallelism"),
    ("Rollout", "async_config", dict[str, int], {}, "Asynchronous rollout", "Rollout and update take turns."),
    ("SamplingConfig", "use_flashinfer", bool, False, "FlashInfer", "A vLLM option."),
    ("Train", "timestamp", str, "", "Timestamp", "Name of cosmos-rl's run folder."),
    ("Train", "signal_to_handle", list[str], ["SIGUSR1"], "Signals", "Signals that save and stop; SIGTERM and SIGUSR1 always do."),
    ("Train", "sequence_packing", bool, False, "Sequence packing", "cosmos-rl's packing.", "engine.packing"),
    ("Train", "fa_version", Literal[2, 3] | None, None, "FlashAttention", "Version of FlashAttention."),
    ("Train", "async_tp_enabled", bool, False, "Async TP", "Overlap tensor-parallel communication."),
    ("Train", "sync_weight_interval", Positive, 1, "Weight sync", "Steps between syncs of replicas."),
    ("Train", "local_dataset", TrueOrNull, True, "Local dataset", "Read data in the worker."),
    ("Train", "force_use_hf", FalseOrNull, False, "Hugging Face model code", "Use transformers' code."),
    ("Train", "non_text", bool, False, "Non-text samples", "Samples hold more than text."),
    ("Train", "ema_decay", Share, 0.9999, "EMA decay", "Decay of the moving average."),
    ("Train", "ema_update_step_interval", Count, 0, "EMA interval", "Steps between updates."),
    ("Parallelism", "cp_rotate_method", Literal["allgather", "p2p"], "allgather", "Context rotation", "Exchange of keys between context-parallel ranks."),
    ("Parallelism", "pp_dynamic_shape", bool, False, "Pipeline shapes", "Shapes differ between micro-batches."),
    ("Parallelism", "pp_micro_batch_size", Positive, 1, "Pipeline micro-batch", "Samples per pipeline stage."),
    ("Parallelism", "pp_schedule", PipelineSchedule, "Interleaved1F1B", "Pipeline schedule", "Order of forward and backward in a pipeline."),
    ("Parallelism", "pp_layers_per_stage", Positive, 2, "Layers per stage", "Layers per pipeline stage."),
    ("Lora", "primary_adapter", str | None, None, "Main adapter", "Name of the active adapter."),
    ("Policy", "enable_liger_kernel", bool, False, "Liger kernels", "Use Liger's kernels."),
    ("Policy", "enable_liger_cross_entropy", bool, False, "Liger loss", "Use Liger's loss."),
    ("Policy", "enable_liger_fused_cross_entropy", bool, False, "Liger fused loss", "Use Liger's loss."),
    ("MediaSet", "media_root", str, "", "Media root", "An older name of media_path.", "media_path in the same table"),
    ("Validation", "dataloader_num_workers", Count, 8, "Workers", "Loader processes."),
    ("Validation", "dataloader_prefetch_factor", Positive | None, None, "Prefetch", "Batches ahead."),
    ("Validation", "enable_dataset_cache", bool, False, "Sample cache", "Keep processed samples."),
    ("Logging", "level", str | None, None, "Log level", "Level of cosmos-rl's logs."),
    ("Logging", "multi_modal_log_interval", Positive | None, None, "Media log", "Steps between images."),
    ("Logging", "report_mfu", bool, False, "Report MFU", "Log utilisation; always logged here."),
    ("Model", "save_folder", str, "", "Result name", "Name of a result folder.", "results_dir"),
    ("Model", "tokenizer_model_name", str, "", "Tokenizer", "Name of a tokenizer; the model's own is always used."),
    ("Evaluation", "answer_type", str, "freeform", "Answer type", "Answers are parsed by their content."),
    ("Evaluation", "num_processes", Positive, 40, "Processes", "Loader processes.", "engine.decode_workers"),
    ("Generation", "max_retries", Count, 10, "Retries", "Attempts per answer."),
    ("Metrics", "bertscore_lang", str, "en", "BERTScore language", "Language of BERTScore."),
    ("Metrics", "bertscore_device", str, "cpu", "BERTScore device", "Device of BERTScore."),
    ("Metrics", "bertscore_batch_size", Positive, 1, "BERTScore batch", "Batch of BERTScore."),
    ("Results", "save_individual_results", bool, True, "Save answers", "results.json; always written."),
    ("Results", "save_confusion_matrix", bool, True, "Save confusion", "Always in metrics.json."),
    ("Results", "save_metrics_summary", bool, True, "Save scores", "metrics.json; always written."),
    ("GrpoValidation", "batch_size", Positive | None, None, "Rows", "Questions answered at a time; unset is as many as in rollouts."),
    ("GrpoEngine", "validation_generate", Count, 0, "Generated validation answers", "The whole set is answered.", "validation.*"),
    ("GrpoEngine", "validation_max_tokens", Positive, 1024, "Maximum validation answer", "See validation.max_response_length.", "validation.max_response_length"),
    ("QuantizeDataset", "dataset_id", str, "", "Public data set", "TAO's public set of images for calibration.", "dataset.annotation_path"),
    ("QuantizeDataset", "dataset_split", str, "", "Public split", "TAO's part of that set.", "quantize.num_calibration_samples"),
    ("Quantize", "skip_test_generation", bool, True, "Test generation", "TAO's test answer; here log-probabilities are compared.", "quantize.evaluate"),
]
# Keys of which our engine supports only the default.
DEFAULT_ONLY: list[tuple[Any, ...]] = [
    ("Fp8", "fp8_recipe", Fp8Recipe, "dynamic_scaling", "FP8 scaling", "Computation of FP8 scales."),
    ("Fp4", "enable_fp4", bool, False, "FP4", "Compute matrix products in 4-bit floats."),
    ("TrainPolicy GrpoPolicy", "system_prompt", str, "", "System prompt", "System prompt of text datasets.", "custom.system_prompt"),
    ("TrainPolicy", "balance_dp_token", bool, True, "Balance the loss by tokens", "Equal weight of all supervised tokens of a step on all ranks."),
    ("GrpoPolicy", "use_remote_reward", bool, False, "Remote reward", "A reward service.", "train.train_policy.reward_function"),
    ("GrpoPolicy", "bypass_reward", bool, False, "No rewards", "Train without rewards."),
    ("GrpoPolicy", "group_reward_calculation", bool, False, "Group rewards", "Rewards of whole groups."),
    ("GrpoPolicy", "aipo_rho", PositiveOrNull, None, "AIPO", "Another objective."),
    ("GrpoPolicy", "entropy_coeff", float, 0.0, "Entropy bonus", "Weight of the entropy in the loss."),
    ("GrpoPolicy", "positive_nll_coef", PositiveOrNull, None, "Positive NLL", "Weight of the loss of correct completions."),
    ("GrpoPolicy", "off_policy_masking_delta", PositiveOrNull, None, "Off-policy mask", "Mask completions far from the rollout."),
    ("GrpoPolicy", "unbiased_kl_estimate", bool, False, "Weighted KL", "Multiply KL by the probability ratio."),
    ("GrpoPolicy", "reference_reset_interval", Positive | None, None, "Reset of the reference", "Steps between resets of the reference."),
    ("GrpoPolicy", "dpo_reference_policy", bool, False, "DPO reference", "Another objective."),
    ("GrpoPolicy", "use_decoupled_loss", bool, False, "Decoupled loss", "Another objective."),
    ("GrpoPolicy", "use_rollout_logprobs_for_loss", bool, False, "Old log-probabilities of the rollout", "Old log-probabilities are the trainer's own."),
    ("SamplingConfig", "top_p", Share, 1.0, "Top p", "Truncation biases the ratio of trainer and rollout."),
    ("SamplingConfig", "top_k", int, -1, "Top k", "Truncation biases the ratio of trainer and rollout."),
    ("SamplingConfig", "repetition_penalty", float, 1.0, "Repetition penalty", "A penalty biases the ratio of trainer and rollout."),
    ("Rollout", "quantization", Literal["none", "fp8"], "none", "Rollout precision", "8-bit rollouts."),
    ("Train", "activation_offload", bool, False, "Activation offload", "Keep activations in CPU memory."),
    ("Train", "deterministic", bool, False, "Deterministic kernels", "Use only bitwise reproducible kernels."),
    ("Train", "save_ckpt_at_exit", bool, True, "Save on signal", "Save on a stop signal."),
    ("Train", "ema_enable", bool, False, "EMA", "Keep a moving average of the weights."),
    ("Parallelism", "tp_size", Positive, 1, "Tensor parallel", "GPUs that share one layer: sharded weights and shared packs send less. Always written: cosmos-rl's own default is 2.", "policy.parallelism.dp_shard_size and cp_size"),
    ("Parallelism", "pp_size", Positive, 1, "Pipeline parallel", "GPUs that hold different layers."),
    ("Parallelism", "ep_size", Positive, 1, "Expert parallel", "GPUs that hold different experts."),
    ("Parallelism", "n_init_replicas", Positive, 1, "Policy replicas", "Independent trainers at the start."),
    ("Lora", "lora_names", list[str], ["default"], "Adapter names", "Adapters trained at once."),
    ("Policy", "model_safetensor_path", str | None, None, "Weights elsewhere", "Another folder with weights."),
    ("Policy", "trainable_map", dict[str, bool] | None, None, "Train by name", "Parameters to train or freeze, by name.", "policy.trainable_pattern"),
    ("Policy", "aux_loss_coeff", NotNegative, 0.0, "Router loss", "Weight of a mixture-of-experts loss."),
    ("Model", "tp_size", Positive, 1, "Tensor parallel", "GPUs that share one layer; here each holds the whole model.", "num_gpus"),
    ("Evaluation", "shard_id", Count, 0, "Shard", "Index of the evaluated part."),
    ("GrpoTrain", "fsdp_offload", bool, False, "CPU offload", "The rollout model needs the weights on the GPU."),
    ("GrpoEngine", "objective", Objective, "sft", "Objective", "The objective is train.train_policy.variant."),
    ("GrpoEngine", "packing", bool, True, "Packing", "Completions are always packed behind their prompt."),
    ("GrpoEngine", "share_video_prefix", bool, True, "Share videos", "The completions of a question always share its video and prompt."),
    ("GrpoEngine", "keep_features", bool, False, "Feature cache", "Features of a frozen tower are not cached; frames are held for a step."),
]
# fmt: on
# Keys of NVIDIA's example files, or of an older cosmos-rl, with their names here.
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
# Keys that belong to something other than a spec: what that is, and what to write instead.
_LOADER = "write a function that yields the records of this set, and set custom.loader to FILE.py:FUNCTION"
OF_THEIR_LOADERS = {"custom.dataset.dataset_root": _LOADER, "custom.dataset.meta_file": _LOADER}
NO_SPECS = {
    **{path: ("the loader of a recipe of the cookbook alone", _LOADER) for path in OF_THEIR_LOADERS},
    "parent_job_id": ("a workflow, not of a spec", "give it to scripts/build_spec.py: --parent-job-id JOB"),
    "automl_policy": ("a workflow, not of a spec", "give it to scripts/route_train.py: --automl auto, on or off"),
}
# Keys of earlier versions, with the default that these wrote, which is ignored, and the remedy for other values.
_VLLM = "remove it; vLLM's own server answers with an exported folder, see references/serving.md"
REMOVED: dict[str, tuple[object, str]] = {"engine.vllm.python": ("", _VLLM)}
# Tables and keys of cosmos-rl's own processes.
OF_THEIR_PROCESSES = ("profiler", "controller_execution_id")
# Tables and keys that only cosmos-rl's reinforcement learning reads, except the keys of a GRPO spec.
REINFORCEMENT = (
    *("rollout", "distillation", "vla", "policy.diffusers", "policy.is_diffusers", "validation.remote_reward"),
    *("train.coalesce_weight_sync", "train.logprob_dtype", "train.p2p_sync_pack_tensors", "train.prefetch_payloads"),
    *("train.p2r_sync_groups_per_round", "train.transfer_dtype", "train.train_policy.overlong_reward"),
    *("train.train_policy.remote_reward", "train.train_policy.reset_optimizer_with_reference"),
    "train.train_policy.uncentralized_training",
)


def with_compat_keys(table: type[T]) -> type[T]:
    """Append the table's keys of NO_EFFECT and DEFAULT_ONLY to its own."""
    fields: dict[str, Any] = {}
    for rows, is_default_only in ((DEFAULT_ONLY, True), (NO_EFFECT, False)):
        for owner, name, kind, default, title, description, *instead in rows:
            if table.__name__ in owner.split():
                only = {"only": [default]} if is_default_only else {"native": "no effect"}
                fields[name] = (kind, key(default, title, description, instead=next(iter(instead), None), **only))
    return cast(type[T], create_model(table.__name__, __base__=table, __module__=table.__module__, **fields))
