"""The `train` table of a spec: schedule, optimizer, precision, checkpoints, and batches.

A field is key(default, title, description), with `automl` for its default search range and `only` for the values that
this engine supports of those that the type allows. `with_compat_keys` adds the keys of cosmos-rl that have no effect
here, so some classes have no fields of their own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vidqa.spec._field import (
    Count,
    CountOrNull,
    Dtype,
    HeldOut,
    NotNegative,
    Positive,
    PositiveFloat,
    Share,
    Table,
    key,
    null_is,
    table,
)
from vidqa.spec.compat_keys import Granularity, with_compat_keys

Beta = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[Literal["linear", "sqrt", "cosine", "none"], null_is("none")]
DECAYING = {"train.optm_decay_type": ["linear", "sqrt", "cosine"]}
LearningRate = NotNegative | list[NotNegative] | dict[str, NotNegative]


@with_compat_keys
class Fp8(Table):
    enable_fp8: bool = key(
        False,
        "FP8",
        "Matrix products of trainable layers in 8-bit floats: faster, with a slightly different loss. GPUs from sm_89.",
    )
    quant_recipe: Granularity = key(
        "tensorwise",
        "FP8 granularity",
        "One FP8 scale per matrix, or per row: closer to bf16, slower, and not in vision blocks.",
    )


@with_compat_keys
class Fp4(Table):
    pass


class Checkpoint(Table):
    enable_checkpoint: bool = key(True, "Checkpoints", "Save resumable training state during training.")
    save_freq: CountOrNull = key(
        0, "Save every N steps", "Optimizer steps between checkpoints; 0 is off. Setting it clears save_freq_in_epoch."
    )
    save_freq_in_epoch: CountOrNull = key(
        1,
        "Save every N epochs",
        "Epochs between checkpoints; 0 is off. Once per epoch by default: a lost run costs at most one epoch.",
    )
    save_mode: Literal["async", "sync"] = key(
        "async", "Save mode", "async writes while training continues; sync waits until the files are complete."
    )
    max_keep: Annotated[int, Field(ge=-1)] = key(
        3,
        "Checkpoints kept",
        "Newest checkpoints and exports kept besides the best one, at least one; -1 keeps all. A checkpoint is 3 x the "
        "fp32 weights.",
    )
    export_safetensors: bool = key(
        True, "Export with each checkpoint", "Also write weights that transformers loads, next to each checkpoint."
    )
    upload_hf: bool = key(
        False,
        "Upload to the hub",
        "After training, upload the best export to the Hugging Face hub; a new repository is made private.",
    )
    hf_repo_name: str = key(
        "", "Hub repository", "organisation/name for upload_hf; a name alone is in the token's namespace."
    )
    upload_s3: bool | str = key(
        False,
        "Upload to S3",
        "After training, upload the run and its exports: final (the best and the newest) or all kept ones.",
        only=[False, "final", "all"],
    )
    s3_bucket: str | None = key(None, "S3 bucket", "Bucket for upload_s3.")
    s3_prefix: str = key("outputs", "S3 prefix", "Prefix for upload_s3; the run gets a folder of its name below it.")


@with_compat_keys
class Dataset(Table):
    pass


class TrainDataset(Dataset):
    test_size: HeldOut = key(
        None,
        "Held-out part",
        "Samples held out of the training set for validation: a number, or a share below 1. All samples of a video "
        "are on one side. Only used without custom.val_dataset.",
    )


@with_compat_keys
class ValidationDataset(Dataset):
    pass


@with_compat_keys
class TrainPolicy(Table):
    type: Literal["sft"] = key(
        "sft", "Training type", "Supervised fine-tuning. Always written: without it cosmos-rl may switch to RL."
    )
    dataset: TrainDataset = table(TrainDataset, "Dataset", "Held-out part of the training set.")
    mini_batch: Positive = key(
        1,
        "Micro-batch",
        "Samples per forward pass and rank without packing. 1 needs the least memory; more changes no result.",
    )
    dataloader_shuffle: bool = key(True, "Shuffle", "Shuffle the samples anew in every epoch.")
    dataloader_seed: Count = key(0, "Order seed", "Seed of the order of samples, and of the held-out part.")
    dataloader_drop_last: bool = key(
        True,
        "Drop the last partial batch",
        "Leave out the samples at the end of an epoch that do not fill a batch; false trains them as a smaller step.",
    )
    dataloader_num_workers: Count = key(8, "Decode workers", "Video decoding processes per rank, at least one.")


@with_compat_keys
class Train(Table):
    epoch: Positive = key(
        3,
        "Epochs",
        "Passes over the training set. Three suit a few thousand questions; watch validation for more.",
        automl={"min": 1, "max": 20, "scale": "log", "default": True},
    )
    max_num_steps: Positive | None = key(
        None,
        "Maximum steps",
        "Maximum number of optimizer steps, for a short trial; training ends earlier if the epochs do.",
    )
    train_batch_per_replica: Positive = key(
        8,
        "Batch per rank",
        "Samples per optimizer step and data-parallel rank; times dp_shard_size x dp_replicate_size is the effective "
        "batch. A multiple of mini_batch. 8 on 8 GPUs gives 64, stable for answers of a few words.",
        automl={"min": 1, "max": 32, "default": True},
    )
    optm_name: Literal["AdamW", "AdamW8bit", "Adam"] = key(
        "AdamW",
        "Optimizer",
        "AdamW has decoupled weight decay. AdamW8bit has 8-bit moments, which saves 6 bytes of memory per trainable "
        "parameter and needs bitsandbytes; matrices whose row length is no multiple of 256 keep 32 bits.",
    )
    optm_lr: LearningRate = key(
        1e-5,
        "Learning rate",
        "Peak learning rate. 1e-5 trains an 8B model without forgetting; LoRA needs about ten times more. A table has "
        "one for each part of the model: vision, merger, decoder, and global for the rest; a list is [decoder, "
        "vision].",
        automl={"min": 1e-6, "max": 1e-3, "scale": "log", "with_lora": {"min": 1e-5}, "default": True},
    )
    optm_impl: Literal["fused", "foreach", "for-loop"] = key(
        "fused", "Optimizer kernel", "PyTorch's implementation; fused is the fastest on GPUs."
    )
    optm_weight_decay: NotNegative = key(
        0.01,
        "Weight decay",
        "Decay of matrices; norms and biases are never decayed.",
        automl={"min": 0.0, "max": 0.1, "default": True},
    )
    optm_betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] = key(
        [0.9, 0.999],
        "Betas",
        "Decay rates of Adam's two moments.",
        automl={"min": [0.8, 0.9], "max": [0.95, 0.999], "default": False},
    )
    epsilon: PositiveFloat = key(1e-8, "Epsilon", "Adam's guard against division by zero.")
    optm_warmup_steps: Count | NotNegative | None = key(
        0.05,
        "Warm-up",
        "Steps over which the learning rate rises: a whole number of steps, or a fraction (written with a point, up to "
        "1.0) of all steps. 5 % keeps Adam's first, noisy steps small. Excludes optm_warmup_epochs.",
        automl={"min": 0.0, "max": 0.2, "default": False},
    )
    optm_warmup_epochs: NotNegative | None = key(
        None,
        "Warm-up in epochs",
        "Warm-up in epochs, also fractions. Excludes optm_warmup_steps.",
        automl={"min": 0.0, "max": 5.0, "depends_on": "train.epoch", "default": False},
    )
    optm_warmup_start_factor: Share = key(0.0, "Warm-up start", "Initial rate of warm-up, as a share of the peak.")
    optm_decay_type: Decay = key(
        "cosine",
        "Decay",
        "Decay schedule after warm-up. Cosine stays high for long and ends smoothly.",
        automl={
            "choices": ["linear", "sqrt", "cosine", "none"],
            "weights": [0.1, 0.1, 0.4, 0.4],
            "default": True,
        },
    )
    optm_decay_ratio: Share | None = key(
        None,
        "Decay share",
        "Share of all steps, at the end, over which the rate decays; unset is all after warm-up.",
        automl={"min": 0.1, "max": 1.0, "only_where": DECAYING, "default": False},
    )
    optm_min_lr_factor: Share = key(
        0.1,
        "Final rate",
        "Final rate, as a share of the peak. With a tenth, the last batches still contribute.",
        automl={"min": 0.0, "max": 0.5, "only_where": DECAYING, "default": False},
    )
    optm_grad_norm_clip: NotNegative = key(
        1.0, "Gradient clip", "Maximum norm of the gradient, to which a larger one is scaled down; 0 is off."
    )
    master_dtype: Dtype = key(
        "float32", "Master weights", "Precision of the weights that the optimizer updates.", only=["float32"]
    )
    param_dtype: Dtype = key(
        "bfloat16", "Compute precision", "Precision of the forward and backward pass.", only=["bfloat16", "float32"]
    )
    fsdp_reduce_dtype: Dtype = key(
        "float32",
        "Gradient sum precision",
        "Precision in which gradients are summed over ranks.",
        only=["float32", "bfloat16"],
    )
    fsdp_reshard_after_forward: Literal["default", "always", "never", "true", "false"] = key(
        "default",
        "Reshard after forward",
        "Free gathered weights after a layer's forward pass. never (or false) is faster and keeps all weights during "
        "a step, always (or true) keeps none; default is never if GPU memory allows.",
    )
    fsdp_offload: bool = key(
        False,
        "CPU offload",
        "Keep trainable weights, gradients and optimizer moments in host memory; the GPU has weights in compute "
        "precision. A step takes seconds longer; full training of an 8B model fits one GPU of 80 GB.",
    )
    seed: CountOrNull = key(42, "Seed", "Seed of dropout and initialization.")
    compile: bool = key(
        True,
        "Compile",
        "Fuse the element-wise operations of every layer with torch.compile, on GPUs; a CPU runs eagerly.",
    )
    resume: bool | str = key(
        False, "Resume", "true: from the newest checkpoint of this run; a path: from that checkpoint folder."
    )
    output_dir: str = key("output", "Output folder", "Parent folder of the run folder.")
    fp8: Fp8 = table(Fp8, "FP8", "8-bit compute.")
    fp4: Fp4 = table(Fp4, "FP4", "4-bit compute.")
    ckpt: Checkpoint = table(Checkpoint, "Checkpoints", "Checkpoints, exports and uploads.")
    train_policy: TrainPolicy = table(
        TrainPolicy, "Samples", "Sample order, held-out part, micro-batches, decode workers."
    )
