"""Keys of cosmos-rl and TAO that change nothing here. A spec takes them, so that a user's file moves over unchanged."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import Field, create_model

from vidqa.spec._field import Count, NotNegative, Positive, Share, Table, TextOrNull, key, null_is

T = TypeVar("T", bound=Table)
HeldOut = Positive | Annotated[float, Field(gt=0, lt=1)] | None
Fp8Recipe = Literal["dynamic_scaling", "delayed_scaling"]
Granularity = Literal["rowwise", "tensorwise"]
OneOrNull = Annotated[int, Field(ge=1), null_is(1)]
TrueOrNull, FalseOrNull = Annotated[bool, null_is(True)], Annotated[bool, null_is(False)]
BatchStrategy = Literal["prefer_first", "prefer_closest"]
PipelineSchedule = Literal["1F1B", "GPipe", "Interleaved1F1B"]

# One row a key: table, name, type, default, title, description, and the key to use instead where there is one.
# fmt: off
NO_EFFECT: list[tuple[Any, ...]] = [
    ("Fp4", "fp4_recipe", Fp8Recipe, "dynamic_scaling", "FP4 scaling", "How FP4 scales are found."),
    ("Fp4", "quant_recipe", Granularity, "rowwise", "FP4 granularity", "What shares one FP4 scale."),
    ("Dataset", "name", str, "", "Dataset name", "Name in a dataset registry.", "custom.*"),
    ("Dataset", "subset", TextOrNull, "", "Dataset subset", "Subset of a named dataset."),
    ("Dataset", "revision", TextOrNull, "", "Dataset revision", "Revision of a named dataset."),
    ("Dataset", "split", str | list[str], "train", "Dataset split", "Split of a named dataset."),
    ("Dataset", "local_dir", str, "", "Dataset folder", "Folder of a named dataset.", "custom.*"),
    ("ValidationDataset", "test_size", HeldOut, None, "Held-out part", "Read nowhere.", "train.train_policy.dataset.test_size"),
    ("TrainPolicy", "trainer_type", Literal["sft"], "sft", "Trainer", "Trainer of the kind of training."),
    ("TrainPolicy", "dataloader_prefetch_factor", Positive | None, None, "Prefetch", "Batches ahead per worker."),
    ("TrainPolicy", "dataloader_batch_size", OneOrNull, 1, "Fetch size", "Samples per controller request."),
    ("TrainPolicy", "dataloader_broadcast", bool, False, "Broadcast batches", "Read on one rank and send to the others."),
    ("TrainPolicy", "data_dispatch_as_rank_in_mesh", bool, False, "Deal by mesh rank", "Give each rank of the mesh its own share of the data."),
    ("TrainPolicy", "enable_dataset_cache", bool, False, "Sample cache", "Keep processed samples on disk.", "engine.frame_cache_gb"),
    ("TrainPolicy", "conversation_column_name", str, "conversations", "Conversation field", "Field with the turns; both common names are read."),
    ("TrainPolicy", "enable_dp_load_balancing", bool, False, "Balance batches", "Dynamic batches of equal size.", "engine.packing"),
    ("TrainPolicy", "load_balanced_pool_size", Positive, 32, "Pool size", "Samples to choose from."),
    ("TrainPolicy", "load_balanced_max_tokens_for_batch", Positive | None, None, "Tokens per batch", "Token budget of a batch.", "engine.pack_tokens"),
    ("TrainPolicy", "load_balanced_batching_strategy", BatchStrategy, "prefer_closest", "Batching strategy", "Which sample joins a batch."),
    ("TrainPolicy", "load_balanced_batches_per_optimizer_step", Positive, 1, "Batches per step", "Dynamic batches per optimizer step."),
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
    ("Parallelism", "cp_rotate_method", Literal["allgather", "p2p"], "allgather", "Context rotation", "How context-parallel ranks exchange keys."),
    ("Parallelism", "pp_dynamic_shape", bool, False, "Pipeline shapes", "Shapes differ between micro-batches."),
    ("Parallelism", "pp_micro_batch_size", Positive, 1, "Pipeline micro-batch", "Samples per pipeline stage."),
    ("Parallelism", "pp_schedule", PipelineSchedule, "Interleaved1F1B", "Pipeline schedule", "Order of forward and backward in a pipeline."),
    ("Parallelism", "pp_layers_per_stage", Positive, 2, "Layers per stage", "Layers per pipeline stage."),
    ("Lora", "primary_adapter", str | None, None, "Main adapter", "Which of several adapters counts."),
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
]
# Keys of which our engine takes the default alone.
DEFAULT_ONLY: list[tuple[Any, ...]] = [
    ("Fp8", "fp8_recipe", Fp8Recipe, "dynamic_scaling", "FP8 scaling", "How FP8 scales are found."),
    ("Fp4", "enable_fp4", bool, False, "FP4", "Compute matrix products in 4-bit floats."),
    ("TrainPolicy", "system_prompt", str, "", "System prompt", "System prompt of text datasets.", "custom.system_prompt"),
    ("TrainPolicy", "balance_dp_token", bool, True, "Balance the loss by tokens", "Weigh every supervised token of a step the same on all ranks."),
    ("Train", "fsdp_offload", bool, False, "CPU offload", "Keep weights in CPU memory."),
    ("Train", "activation_offload", bool, False, "Activation offload", "Keep activations in CPU memory."),
    ("Train", "deterministic", bool, False, "Deterministic kernels", "Use only kernels that repeat bit by bit."),
    ("Train", "save_ckpt_at_exit", bool, True, "Save on signal", "Save when asked to stop."),
    ("Train", "ema_enable", bool, False, "EMA", "Keep a moving average of the weights."),
    ("Parallelism", "tp_size", Positive, 1, "Tensor parallel", "GPUs that share one layer: sharded weights and shared packs send less. Always written: cosmos-rl's own default is 2.", "policy.parallelism.dp_shard_size and cp_size"),
    ("Parallelism", "pp_size", Positive, 1, "Pipeline parallel", "GPUs that hold different layers."),
    ("Parallelism", "ep_size", Positive, 1, "Expert parallel", "GPUs that hold different experts."),
    ("Parallelism", "n_init_replicas", Positive, 1, "Policy replicas", "Independent trainers at the start."),
    ("Lora", "lora_names", list[str], ["default"], "Adapter names", "Adapters trained at once."),
    ("Lora", "lora_path", str | None, None, "Adapter to continue", "Folder of trained adapter weights."),
    ("Policy", "model_safetensor_path", str | None, None, "Weights elsewhere", "Another folder with weights."),
    ("Policy", "trainable_map", dict[str, bool] | None, None, "Train by name", "Exact names to train or not.", "policy.trainable_pattern"),
    ("Policy", "aux_loss_coeff", NotNegative, 0.0, "Router loss", "Weight of a mixture-of-experts loss."),
    ("Model", "tp_size", Positive, 1, "Tensor parallel", "GPUs that share one layer; here each holds the whole model.", "num_gpus"),
    ("Evaluation", "shard_id", Count, 0, "Shard", "Which part of the set to evaluate."),
]
# fmt: on


def with_compat_keys(table: type[T]) -> type[T]:
    """The table with its keys of NO_EFFECT and DEFAULT_ONLY after its own."""
    fields: dict[str, Any] = {}
    for rows, taken in ((DEFAULT_ONLY, True), (NO_EFFECT, False)):
        for owner, name, kind, default, title, description, *instead in rows:
            if owner == table.__name__:
                only = {"only": [default]} if taken else {"native": "no effect"}
                fields[name] = (kind, key(default, title, description, instead=next(iter(instead), None), **only))
    return cast(type[T], create_model(table.__name__, __base__=table, __module__=table.__module__, **fields))
