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
        "Frames taken per second of video. For clips of very different length. Excludes nframes.",
        automl={"min": 1, "max": 3, "default": False},
    )
    nframes: Annotated[int, Field(ge=1, le=768)] | None = key(
        8,
        "Frames",
        "Frames taken from every video, evenly spread. 8 gives every clip the same cost and suits clips of some "
        "seconds; more for longer ones. Excludes fps.",
        automl={"min": 1, "max": 8, "default": False},
    )
    total_pixels: Positive | None = key(
        None,
        "Pixel budget",
        "Upper bound for one video, counted once per pair of frames: total_pixels / 1024 is the largest number of "
        "tokens. Unset leaves the model's own bound.",
    )
    max_pixels: Positive | None = key(
        None,
        "Largest frame",
        "Upper bound for every frame of a video, and for an image: max_pixels / 1024 is the largest number of tokens "
        "of a pair of frames. Beside total_pixels the smaller bound holds.",
    )
    min_pixels: Positive | None = key(
        None,
        "Smallest frame",
        "Lower bound for every frame of a video, and for an image: smaller ones are enlarged. Where it contradicts an "
        "upper bound, the upper one holds. Unset leaves the model's own.",
    )
    cap_pixels_per_frame: bool | None = key(
        None,
        "Frames capped",
        "Whether the tokens of every frame of a video are bounded by themselves, as qwen-vl-utils does. Unset is what "
        "the model's folder says, and off where it says nothing, whatever the version of transformers.",
    )
    resized_height: Positive | None = key(
        None,
        "Height",
        "Height of every frame and image, rounded to what the model takes, whatever their shape. With resized_width, "
        "and without bounds in pixels.",
    )
    resized_width: Positive | None = key(None, "Width", "Width of every frame and image; see resized_height.")
    min_frames: Positive | None = key(
        None, "Fewest frames", "Fewest frames that fps takes of a video that has so many. Unset is the model's own."
    )
    max_frames: Positive | None = key(
        None, "Most frames", "Most frames that fps takes of a video. Unset is the model's own."
    )
    video_start: NotNegative | None = key(
        None, "Start", "Second of every video at which what is shown begins; times are told from there."
    )
    video_end: PositiveFloat | None = key(
        None, "End", "Second of every video whose frame is the last that is shown; of a shorter one, its own end."
    )


@with_compat_keys
class MediaSet(Table):
    annotation_path: str = key("", "Annotations", "JSON or JSONL file with the questions and answers.")
    media_path: str = key("", "Media", "Folder or tar archive that the annotations' file names are relative to.")
    response_mode: ResponseMode = key(
        "answer",
        "What is learned",
        "think: the reasoning and the answer; answer: the answer alone; hybrid: reasoning where a record has it.",
    )


class Custom(Table):
    train_dataset: MediaSet = table(MediaSet, "Training set", "What is learned from.")
    val_dataset: MediaSet = table(MediaSet, "Validation set", "What is measured while training.")
    loader: str = key(
        "",
        "Loader",
        "A function of your own that yields records, FILE.py:FUNCTION. It is given the annotation path of the set that "
        "is read, where there is one.",
    )
    vision: Vision = table(Vision, "Vision", "How a video becomes frames. The same in training and evaluation.")
    system_prompt: str = key("", "System prompt", "First message of every conversation; empty is none.")


@with_compat_keys
class Validation(Table):
    enable: bool = key(
        False, "Validate", "Measure the loss on the validation set while training; decides which export is best."
    )
    val_before_train: bool = key(False, "Validate first", "Also measure before the first step, as a baseline.")
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
        "Where metrics go besides metrics.jsonl: console, wandb, tensorboard. tao does nothing.",
    )
    project_name: str = key("finetune-cosmos-reason", "Project", "Project name at the tracker.")
    experiment_name: str | None = key(None, "Experiment", "Name of this run at the tracker; unset is the run's own.")
    group_name: str | None = key(None, "Group", "Group of runs at the tracker.")
    log_interval: Positive = key(1, "Log every N steps", "Steps over which a logged loss is averaged, at most.")
    wandb_run_id: str | None = key(None, "wandb run id", "Id of the wandb run to continue.")
    wandb_run_name: str | None = key(None, "wandb run name", "Exact name shown by wandb.")
    wandb_resume: Literal["allow", "must", "never", "auto"] = key(
        "allow", "wandb resume", "What wandb does when the run id exists."
    )


class DecodeEngine(Table):
    """Keys of our own engine that training and evaluation share."""

    on_bad_sample: Literal["fail", "quarantine"] = key(
        "fail",
        "Broken videos",
        "fail stops at the first video that cannot be decoded; quarantine leaves it out and lists it.",
    )
    decode_timeout_s: PositiveFloat = key(60.0, "Decode limit", "Seconds after which a decode is killed.")
    frame_cache_gb: Annotated[float, Field(ge=0, le=1e9)] = key(
        20.0, "Frame cache", "Gigabytes of resized frames kept on disk; 0 is off."
    )
    frame_cache_dir: str = key("", "Frame cache folder", "Folder of the frame cache; empty is the usual cache folder.")


class TrainEngine(DecodeEngine):
    objective: Literal["sft", "dpo"] = key(
        "sft",
        "Objective",
        "sft: the answers are learned. dpo: of every pair of a right and a rejected answer the right one becomes the "
        "likelier one, relative to the model that training begins with. DPO wants a learning rate that is ten times "
        "smaller: about 1e-6, of LoRA 1e-5.",
    )
    dpo_beta: PositiveFloat = key(
        0.1,
        "DPO beta",
        "How closely the model stays to the one it began with; less moves further. Only with objective dpo.",
    )
    dpo_label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = key(
        0.0, "DPO label smoothing", "Share of pairs whose answers may be the wrong way round. Only with objective dpo."
    )
    dpo_sft_weight: NotNegative = key(
        0.0,
        "DPO weight of SFT",
        "Weight of the right answers' loss per token beside that of the pairs: against right answers that become less "
        "likely together with the wrong ones. Only with objective dpo.",
    )
    packing: bool = key(True, "Packing", "Put several samples into one row, so that no token is padding.")
    pack_tokens: Positive | None = key(
        None,
        "Pack budget",
        "Tokens of one pack. Unset is chosen together with what is recomputed, so that the GPU's memory is used best; "
        "on a CPU it is policy.model_max_length.",
    )
    share_video_prefix: bool = key(
        False,
        "Share videos",
        "Compute a video once for all questions about it in a step, which keeps them together. Pays on GPUs: 1.5 times "
        "the samples a second with two questions a video, 6.6 times with eight. Losses are the same, the order of "
        "samples is not.",
    )
    keep_features: bool = key(
        False,
        "Keep features",
        "Keep what a frozen vision tower makes of each video within frame_cache_gb, and read it from the second epoch "
        "on instead of frames. Losses are the same. Takes five times what frames take, and 0.4 GB/s of reading for "
        "each GPU: for a few hundred videos and many epochs, on a local disk or in memory.",
    )
    recompute: Literal["auto", "none", "vision", "all"] = key(
        "auto",
        "What is recomputed",
        "The activations that the backward pass recomputes, where policy.model_gradient_checkpointing allows it: none "
        "is fastest, vision saves the vision tower's memory, all saves the most; auto recomputes what costs least, of "
        "as many layers as the GPU's memory makes necessary.",
    )
    gpu_memory_gib: PositiveFloat | None = key(
        None, "GPU memory", "GiB that the training may take of each GPU, if others need the rest; unset is all of it."
    )
    validation_generate: Count = key(
        0, "Answered validation samples", "Validation samples that are also answered by generation, for accuracy."
    )
    validation_max_tokens: Positive = key(
        1024,
        "Longest validation answer",
        "Most new tokens of an answer in validation. The same as generation.max_tokens of the evaluation, so that both "
        "have the same accuracy; a model that thinks needs room for it.",
    )
    step_timeout_s: PositiveFloat = key(
        1800.0, "Step limit", "Seconds that a rank waits for the others before the run ends."
    )
