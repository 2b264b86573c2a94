"""Actions that train a model, with checkpoints for resuming and exports for evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vidqa.core.actions._base import Action, DataSet, ModelKey, Parent, RecordSampling, Resuming


def _processes(spec: Any) -> int:
    mesh = spec.policy.parallelism
    return mesh.dp_shard_size * mesh.dp_replicate_size * mesh.cp_size


def _secrets(spec: Any) -> tuple[str, ...]:
    """Secrets of trackers and uploads."""
    logger, ckpt = spec.logging.logger, spec.train.ckpt
    uses = {
        "WANDB_API_KEY": "wandb" in logger,
        "HF_TOKEN": ckpt.upload_hf,
        "AWS_ACCESS_KEY_ID": bool(ckpt.upload_s3),
        "AWS_SECRET_ACCESS_KEY": bool(ckpt.upload_s3),
    }
    return tuple(name for name, is_used in uses.items() if is_used)


def _reads(spec: Any) -> tuple[str, ...]:
    """The key of the initial adapter, if there is one."""
    return ("policy.lora.lora_path",) if spec.policy.lora is not None and spec.policy.lora.lora_path else ()


def _packages(spec: Any) -> dict[str, str]:
    """Extras for trackers and bitsandbytes."""
    trackers = ("wandb", "tensorboard")
    required_when = {name: f'logging.logger = "{name}"' for name in trackers if name in spec.logging.logger}
    if spec.policy.quantization == "nf4" or spec.train.optm_name == "AdamW8bit":
        required_when["bitsandbytes"] = "policy.quantization or train.optm_name"
    return required_when


def held_out(spec: Any) -> tuple[float | int, int] | None:
    policy = spec.train.train_policy
    if spec.custom.val_dataset.annotation_path or not policy.dataset.test_size:
        return None
    return policy.dataset.test_size, policy.dataloader_seed


# Supervised fine-tuning.
TRAIN = Action(
    name="train",
    spec="vidqa.spec.models:TrainSpec",
    tables=("train", "policy", "custom", "validation", "logging"),
    output_key="train.output_dir",
    models=(ModelKey("policy.model_name_or_path", revision="policy.model_revision"),),
    data=(
        DataSet(
            "train",
            "custom.train_dataset.annotation_path",
            "custom.train_dataset.media_path",
            root="train",
            is_trained_on=True,
        ),
        DataSet(
            "validation",
            "custom.val_dataset.annotation_path",
            "custom.val_dataset.media_path",
            root="val",
            root_sets={"validation.enable": True},
            required_when="unless train.train_policy.dataset.test_size splits",
        ),
    ),
    reads=_reads,
    decoding="engine",
    rules="vidqa.spec.train_rules:train_rules",
    build_options="--train-root DATA",
    profiles={
        "full": {},
        "frozen-vision": {"policy.freeze_pattern": ["visual"]},
        "lora": {"policy.lora": {}, "train.optm_lr": 1e-4},
        "small-card": {"policy.lora": {}, "train.optm_lr": 1e-4, "policy.quantization": "nf4"},
    },
    shorthand={
        "dp_shard_size": "policy.parallelism.dp_shard_size",
        "dp_replicate_size": "policy.parallelism.dp_replicate_size",
        "cp_size": "policy.parallelism.cp_size",
        "num_epochs": "train.epoch",
        "batch_size": "train.train_batch_per_replica",
        "learning_rate": "train.optm_lr",
        "mini_batch": "train.train_policy.mini_batch",
        "weight_decay": "train.optm_weight_decay",
        "warmup_epochs": "train.optm_warmup_epochs",
    },
    exclusive=(
        ("custom.vision.fps", "custom.vision.nframes"),
        ("train.optm_warmup_steps", "train.optm_warmup_epochs"),
    ),
    later_wins=(
        ("train.ckpt.save_freq", "train.ckpt.save_freq_in_epoch"),
        ("validation.freq", "validation.freq_in_epoch"),
    ),
    keys_without_effect=("train.timestamp", "train.resume", "results_dir"),
    parent=Parent("latest", "vidqa.spec.parent_layers:continued"),
    cosmos=True,
    is_searchable=True,
    processes=_processes,
    processes_key="policy.parallelism",
    fills_gpus=True,
    secrets=_secrets,
    packages=_packages,
    resuming=Resuming(
        "train.resume", must_exist=True, can_resume=lambda run: bool(run.complete(run.checkpoints, "trainer.json"))
    ),
    outcome="vidqa.jobs.job_results:of_training",
    program="vidqa.engine.train:train",
    proof="vidqa.engine.prove:prove",
    report_module="vidqa.core.pages.training",
    uploads=lambda spec: bool(spec.train.ckpt.upload_s3 or spec.train.ckpt.upload_hf),
    sampling=RecordSampling(
        planner="vidqa.planning.samples:training_planner",
        vision="custom.vision",
        length_key="policy.model_max_length",
        longest=lambda spec: spec.policy.model_max_length,
        held_out=held_out,
        modes={"validation": "vidqa.planning.samples:validation_mode"},
    ),
    trains=True,
    evaluated_by="evaluate",
)

# Reinforcement learning: groups of sampled completions are rewarded, and the model learns from them by GRPO.
GRPO = replace(
    TRAIN,
    name="grpo",
    spec="vidqa.spec.models:GrpoSpec",
    tables=("train", "policy", "custom", "validation", "logging", "rollout"),
    reads=lambda spec: (*TRAIN.reads(spec), "train.train_policy.reward_function", "validation.reward_function"),
    rules="vidqa.spec.train_rules:grpo_rules",
    build_options="--parent-run RUN --train-root DATA",
    profiles={
        "full": {},
        "frozen-vision": {"policy.freeze_pattern": ["visual"]},
        "lora": {"policy.lora": {}, "policy.lora.lora_dropout": 0.0, "train.optm_lr": 1e-5},
    },
    shorthand={
        **{name: key for name, key in TRAIN.shorthand.items() if name != "mini_batch"},
        "n_generation": "rollout.n_generation",
        "max_response_length": "rollout.max_response_length",
        "kl_beta": "train.train_policy.kl_beta",
        "reward_function": "train.train_policy.reward_function",
    },
    parent=Parent("best", "vidqa.spec.parent_layers:refined"),
    cosmos=False,
    is_searchable=False,
    generates_completions=True,
    program="vidqa.engine.rl.train:train",
    proof="vidqa.engine.rl.replay:prove",
    proves_earlier_run=True,
    report_module="vidqa.evaluation.pages",
    sampling=RecordSampling(
        planner="vidqa.planning.rollouts:prompt_planner",
        vision="custom.vision",
        length_key="policy.model_max_length",
        longest=lambda spec: spec.policy.model_max_length - spec.rollout.max_response_length,
        held_out=held_out,
        modes={"validation": "vidqa.planning.samples:validation_mode"},
    ),
)
