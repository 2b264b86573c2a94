"""The tables around training: the user's data, validation, logging, and settings of our own engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from vidqa.spec._field import Count, CountOrNull, NotNegative, Positive, PositiveFloat, ResponseMode, Table, key, table
from vidqa.spec.compat_keys import with_compat_keys
from vidqa.spec.train_tables import ValidationDataset

Logger = Annotated[
    Literal["console", "wandb", "tensorboard", "tao"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


class Vision(Table):
    fps: PositiveFloat | None = key(
        None,
        "Frames per second",
        "Frames sampled per second of video, for clips of very different length. Excludes nframes.",
        automl={"min": 1, "max": 3, "default": False},
    )
    nframes: Annotated[int, Field(ge=1, le=768)] | None = key(
        8,
        "Frames",
        "Frames sampled from every video, evenly spaced. 8 suits clips of a few seconds, at equal cost; longer clips "
        "need more. Excludes fps.",
        automl={"min": 1, "max": 8, "default": False},
    )
    total_pixels: Positive | None = key(
        None,
        "Pixel budget",
        "Maximum pixels of a video, counted once per pair of frames: total_pixels / 1024 is the maximum number of "
        "tokens. Unset is the model's default.",
    )
    max_pixels: Positive | None = key(
        None,
        "Maximum frame size",
        "Maximum pixels of a video frame or an image: max_pixels / 1024 is the maximum number of tokens of a pair of "
        "frames. With total_pixels, the smaller bound applies.",
    )
    min_pixels: Positive | None = key(
        None,
        "Minimum frame size",
        "Minimum pixels of a video frame or an image: smaller ones are enlarged. If it contradicts an upper bound, "
        "the upper bound applies. Unset is the model's default.",
    )
    cap_pixels_per_frame: bool | None = key(
        None,
        "Per-frame cap",
        "Whether the tokens of each video frame are also bounded individually, as in qwen-vl-utils. Unset is the "
        "setting of the model folder, or off without one, whatever the version of transformers.",
    )
    resized_height: Positive | None = key(
        None,
        "Height",
        "Height of every frame and image, rounded to a multiple of the model's patches, whatever the aspect ratio. "
        "Needs resized_width; excludes pixel bounds.",
    )
    resized_width: Positive | None = key(None, "Width", "Width of every frame and image; see resized_height.")
    min_frames: Positive | None = key(
        None, "Minimum frames", "Minimum frames that fps samples, if the video has them. Unset is the model's default."
    )
    max_frames: Positive | None = key(
        None, "Maximum frames", "Maximum frames that fps samples. Unset is the model's default."
    )
    video_start: NotNegative | None = key(
        None, "Start", "Start of the used part of every video, in seconds; timestamps count from there."
    )
    video_end: PositiveFloat | None = key(
        None, "End", "Time of the last used frame of every video, in seconds; a shorter video is used to its end."
    )


@with_compat_keys
class MediaSet(Table):
    annotation_path: str = key("", "Annotations", "JSON or JSONL file with the questions and answers.")
    media_path: str = key("", "Media", "Folder or tar archive that the annotations' file names are relative to.")
    response_mode: ResponseMode = key(
        "answer",
        "Response mode",
        "think: the reasoning and the answer; answer: the answer alone; hybrid: reasoning where a record has it.",
    )


class Custom(Table):
    train_dataset: MediaSet = table(MediaSet, "Training set", "Training data.")
    val_dataset: MediaSet = table(MediaSet, "Validation set", "Validation data.")
    loader: str = key(
        "",
        "Loader",
        "FILE.py:FUNCTION, a function of your own that yields records. Its argument is the annotation path of the "
        "set, if there is one.",
    )
    vision: Vision = table(Vision, "Vision", "Frame sampling and resizing. Equal in training and evaluation.")
    system_prompt: str = key("", "System prompt", "System message of every conversation; empty is none.")


@with_compat_keys
class Validation(Table):
    enable: bool = key(
        False, "Validate", "Compute the loss on the validation set during training; it selects the best export."
    )
    val_before_train: bool = key(False, "Validate first", "Also validate before the first step, as a baseline.")
    freq: CountOrNull = key(
        0, "Every N steps", "Optimizer steps between validations; 0 is off. Setting it clears freq_in_epoch."
    )
    freq_in_epoch: CountOrNull = key(1, "Every N epochs", "Epochs between validations; 0 is off.")
    batch_size: Positive | None = key(
        None, "Batch", "Samples per forward pass and rank; unset packs them like training."
    )
    dataset: ValidationDataset = table(ValidationDataset, "Dataset", "A named dataset.")


@with_compat_keys
class Logging(Table):
    logger: list[Logger] = key(
        ["console"],
        "Trackers",
        "Trackers besides metrics.jsonl: console, wandb, tensorboard. tao has no effect.",
    )
    project_name: str = key("finetune-cosmos-reason", "Project", "Project name at the tracker.")
    experiment_name: str | None = key(None, "Experiment", "Name of this run at the tracker; unset is the run folder's.")
    group_name: str | None = key(None, "Group", "Group of runs at the tracker.")
    log_interval: Positive = key(1, "Log every N steps", "Steps over which a logged loss is averaged, at most.")
    wandb_run_id: str | None = key(None, "wandb run id", "Id of the wandb run to continue.")
    wandb_run_name: str | None = key(None, "wandb run name", "Display name in wandb.")
    wandb_resume: Literal["allow", "must", "never", "auto"] = key(
        "allow", "wandb resume", "wandb's behavior if the run id exists."
    )


class DecodeEngine(Table):
    """Keys of the native engine that training and evaluation share."""

    on_bad_sample: Literal["fail", "quarantine"] = key(
        "fail",
        "Broken videos",
        "fail stops at the first video that cannot be decoded; quarantine leaves it out and lists it.",
    )
    decode_timeout_s: PositiveFloat = key(60.0, "Decode limit", "Seconds after which a decode is killed.")
    frame_cache_gb: Annotated[float, Field(ge=0, le=1e9)] = key(
        20.0, "Frame cache", "Gigabytes of resized frames kept on disk; 0 is off."
    )
    frame_cache_dir: str = key("", "Frame cache folder", "Folder of the frame cache; empty is the default folder.")


class TrainEngine(DecodeEngine):
    objective: Literal["sft", "dpo"] = key(
        "sft",
        "Objective",
        "sft: supervised fine-tuning on the answers. dpo: direct preference optimization on pairs of a chosen and a "
        "rejected answer, relative to the initial model. DPO needs a ten times smaller learning rate: about 1e-6, "
        "with LoRA 1e-5.",
    )
    dpo_beta: PositiveFloat = key(
        0.1,
        "DPO beta",
        "Strength of the bound to the initial model; a smaller one allows larger changes. Only with objective dpo.",
    )
    dpo_label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = key(
        0.0, "DPO label smoothing", "Assumed share of pairs with swapped answers. Only with objective dpo."
    )
    dpo_sft_weight: NotNegative = key(
        0.0,
        "DPO weight of SFT",
        "Weight of the chosen answers' loss per token, added to the loss of pairs, so that chosen answers do not "
        "become less likely together with rejected ones. Only with objective dpo.",
    )
    packing: bool = key(True, "Packing", "Pack several samples into one row, without padding.")
    pack_tokens: Positive | None = key(
        None,
        "Pack budget",
        "Maximum tokens of a pack. Unset is chosen together with recompute for the best use of GPU memory; on a CPU "
        "it is policy.model_max_length.",
    )
    share_video_prefix: bool = key(
        False,
        "Share videos",
        "Compute a video once for all questions about it, which are put into one step. On GPUs 1.5 times the samples "
        "per second with two questions per video, 6.6 times with eight. Losses are the same, the order of samples is "
        "not.",
    )
    keep_features: bool = key(
        False,
        "Feature cache",
        "Cache the frozen vision tower's features of each video within frame_cache_gb, and read them instead of "
        "frames from the second epoch on. Losses are the same. Takes five times the space of frames, and 0.4 GB/s of "
        "reading per GPU: for a few hundred videos and many epochs, on a local disk or in memory.",
    )
    recompute: Literal["auto", "none", "vision", "all"] = key(
        "auto",
        "Recomputed activations",
        "Activations that the backward pass recomputes, if policy.model_gradient_checkpointing is on: none is "
        "fastest, vision saves the vision tower's memory, all saves the most; auto recomputes the cheapest ones, in "
        "as many layers as GPU memory requires.",
    )
    gpu_memory_gib: PositiveFloat | None = key(
        None, "GPU memory", "Memory limit per GPU in GiB, if other programs need the rest; unset is all of it."
    )
    validation_generate: Count = key(
        0, "Generated validation answers", "Validation samples for which answers are also generated, for accuracy."
    )
    validation_max_tokens: Positive = key(
        1024,
        "Maximum validation answer",
        "Maximum tokens of a validation answer. Use generation.max_tokens of the evaluation for comparable "
        "accuracies; reasoning needs more tokens.",
    )
    step_timeout_s: PositiveFloat = key(
        1800.0, "Step limit", "Seconds that a rank waits for others before the run ends."
    )
