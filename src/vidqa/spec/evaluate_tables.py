"""The tables of an evaluation, an inference and an embedding: data, model, batching and saving, metrics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from vidqa.spec._field import Count, Dtype, NotNegative, Positive, PositiveFloat, Share, Table, key, table
from vidqa.spec.compat_keys import with_compat_keys
from vidqa.spec.policy_tables import DEFAULT_MODEL
from vidqa.spec.run_tables import DecodeEngine

Penalty = Annotated[float, Field(ge=-2, le=2)]


class EvaluateDataset(Table):
    annotation_path: str = key("", "Annotations", "JSON or JSONL file with the questions and expected answers.")
    media_dir: str = key("", "Media", "Folder or tar archive that the annotations' file names are relative to.")
    system_prompt: str = key("", "System prompt", "System message of every conversation; the same as in training.")


@with_compat_keys
class Model(Table):
    model_name: str = key(
        DEFAULT_MODEL, "Model", "hf_model://org/name or a local folder: an export, or an adapter with enable_lora."
    )
    enable_lora: bool = key(False, "LoRA", "model_name is an adapter; it is merged into base_model_path.")
    base_model_path: str = key("", "Base model", "Base model of the adapter; only read with enable_lora.")
    dtype: Dtype = key("bfloat16", "Precision", "Precision of the weights.", only=["bfloat16", "float32"])
    max_length: Positive = key(128000, "Maximum length", "Maximum tokens of a prompt and its answer.")


class Task(Table):
    type: Literal["", "general", "its_directionality"] = key(
        "",
        "Task",
        "Empty or general: yes/no is detected from the expected answers. its_directionality: left, right, straight; "
        "not for collisions, which are yes or no.",
    )


class SoftAccuracy(Table):
    enabled: bool = key(True, "Soft accuracy", "Also count answers that share enough words with the expected one.")
    f1_threshold: Share = key(0.8, "Threshold", "Minimum word F1 that counts as correct.")


class Answering(Table):
    """Keys that evaluation and inference share: batching, limits, seed, generator, resuming."""

    batch_size: Positive = key(8, "Batch", "Questions per batch and GPU. 8 fits 80 GB with 8 frames.")
    limit: Annotated[int, Field(ge=-1)] = key(-1, "Sample limit", "Maximum number of samples; -1 is all.")
    seed: Count = key(1, "Seed", "Seed of sampling.")
    generator: Literal["transformers", "native"] = key(
        "native",
        "Generator",
        "native: packed forward pass with a paged KV cache; on a GPU it batches 64 questions or more, whatever "
        "batch_size is. transformers: generate() of transformers, the reference: the same answers, but slower.",
    )
    skip_saved: bool = key(False, "Resume", "Keep the saved answers of an earlier, stopped run.")


@with_compat_keys
class Evaluation(Answering):
    method: Literal["generate", "score"] = key(
        "generate",
        "Method",
        "generate: answers are generated. score: the answer to a yes/no question or a question with lettered options "
        "is the allowed one with the highest log-probability; other answers are generated.",
    )
    retries: Count = key(
        0,
        "Retries",
        "Retries of a question without an answer, by the rules of Cosmos-Reason1's benchmark: in the same job, each "
        "with 0.05 more temperature, 256 more tokens and the next seed. results.json and the scores use the first "
        "answers; retries.json has the others.",
    )
    soft_accuracy: SoftAccuracy = table(SoftAccuracy, "Soft accuracy", "Accuracy by word overlap.")


@with_compat_keys
class Generation(Table):
    max_tokens: Positive = key(1024, "Maximum new tokens", "Maximum tokens of an answer; a longer one is truncated.")
    temperature: Annotated[float, Field(ge=0, le=2)] = key(
        0.0, "Temperature", "0 is greedy decoding, which is repeatable."
    )
    repetition_penalty: Annotated[float, Field(ge=0.1, le=2)] = key(1.0, "Repetition penalty", "1 is none.")
    top_p: Annotated[float, Field(gt=0, le=1)] = key(
        1.0, "Top p", "Sample from the most probable tokens with this total probability; 1 keeps all tokens."
    )
    top_k: Count = key(0, "Top k", "Sample from this many most probable tokens; 0 keeps all.")
    presence_penalty: Penalty = key(
        0.0,
        "Presence penalty",
        "Subtracted from the logit of each token already in the answer; 0 is none, 1.5 is Cosmos-Reason2's value.",
    )
    frequency_penalty: Penalty = key(
        0.0, "Frequency penalty", "Subtracted from a token's logit per occurrence in the answer; 0 is none."
    )


@with_compat_keys
class Metrics(Table):
    names: list[Literal["bleu", "rouge", "bertscore", "similarity"]] = key(
        ["bleu", "rouge"], "Text metrics", "Scores of free text. bertscore and similarity each need a model."
    )
    bertscore_model: str = key(
        "", "BERTScore model", "Local folder of BERTScore's text encoder; a hub name is not accepted."
    )
    bertscore_layer: Count = key(
        0,
        "BERTScore layer",
        "Hidden layer whose vectors are compared; 0 is the last one. 17 is usual for roberta-large.",
    )
    similarity_model: str = key(
        "", "Similarity model", "Folder of a sentence-transformers model; the score is the cosine of two embeddings."
    )
    functions: Annotated[str, Field(pattern=r"^(.+\.py:[A-Za-z_]\w*)?$")] = key(
        "",
        "Scoring function",
        "FILE.py:FUNCTION of your own. It takes an item of results.json and returns a number, a dictionary of named "
        "numbers, or None.",
    )
    functions_timeout_s: PositiveFloat = key(
        600.0, "Scoring time limit", "Time limit of metrics.functions for all answers, in seconds."
    )


@with_compat_keys
class Results(Table):
    pass


class WorkersEngine(DecodeEngine):
    decode_workers: Count = key(2, "Decode workers", "Video decoding processes per GPU.")


class EvaluateEngine(WorkersEngine):
    gpu_memory_gib: PositiveFloat | None = key(
        None, "GPU memory", "Memory limit per GPU in GiB, if other programs need the rest; unset is all of it."
    )


class InferenceDataset(EvaluateDataset):
    annotation_path: str = key(
        "",
        "Input",
        "A JSON or JSONL file of records, with or without answers; or a video, an image, or a folder of them, each "
        "with the question inference.prompt.",
    )
    media_dir: str = key(
        "", "Media", "Folder or tar archive that the records' file names are relative to; empty is the file's folder."
    )


class Inference(Answering):
    prompt: str = key(
        "Describe this video briefly.", "Question", "Question for files and for records without a question."
    )
    window_s: NotNegative = key(
        0.0,
        "Window",
        "Window length in seconds: a longer video is cut into windows, each answered as a separate clip. 0 is the "
        "whole video.",
    )
    overlap_s: NotNegative = key(0.0, "Overlap", "Overlap of consecutive windows, in seconds.")


class EmbedDataset(InferenceDataset):
    annotation_path: str = key(
        "",
        "Input",
        "A JSON or JSONL file of records, with or without answers; or a video, an image, or a folder of them, without "
        "questions.",
    )
    query_annotation_path: str = key(
        "",
        "Queries",
        "A second set, such as the KPI set with the gaps, embedded in the same job into a separate table "
        "(query_embeddings.parquet): the queries of a search in the first set.",
    )
    query_media_dir: str = key("", "Media of the queries", "As media_dir, for the second set.")
    system_prompt: str = key("", "System prompt", "Inherited from a parent run; not embedded.")


class Embed(Table):
    batch_size: Positive = key(8, "Batch", "Videos per batch of the vision tower and GPU.")
    limit: Annotated[int, Field(ge=-1)] = key(-1, "Record limit", "Maximum records of each set; -1 is all.")
    dimensions: Count = key(
        0,
        "Dimensions",
        "Dimensions of a vector. 0 is the model's full size (8192 for a video with Cosmos-Reason2-8B); 512 preserves "
        "distances to about 6 percent, for pools of a million clips. Only vectors of equal size are comparable.",
    )
    text_model: str = key(
        "",
        "Text model",
        "Folder of a sentence-transformers model that embeds the questions; empty uses the model's token embeddings.",
    )
    skip_saved: bool = key(
        False,
        "Resume",
        "Resume in the folder of an earlier run of this spec. Vectors are always cached beside the runs, by file, "
        "frames and model, and are never computed twice.",
    )


class EmbedEngine(WorkersEngine):
    on_bad_sample: Literal["fail", "quarantine"] = key(
        "quarantine",
        "Broken videos",
        "quarantine skips and reports a broken video; fail stops at the first one.",
    )


class InferenceEngine(EmbedEngine, EvaluateEngine):
    pass


METRIC_MODELS = {"bertscore": "bertscore_model", "similarity": "similarity_model"}  # by the metric's name


def is_folder(name: str) -> bool:
    """Whether a name is a path: names of the hub never begin with one of these characters."""
    return name.startswith(("/", "~", "."))


def metric_models(spec: Any) -> dict[str, str]:
    """The keys of the model folders that the requested metrics need, by metric name."""
    chosen = {name: key for name, key in METRIC_MODELS.items() if name in spec.metrics.names}
    return {name: f"metrics.{key}" for name, key in chosen.items() if is_folder(getattr(spec.metrics, key))}


def path_keys(spec: Any) -> list[str]:
    """The keys of `metric_models`, and that of the user's function."""
    return [*metric_models(spec).values(), *(["metrics.functions"] if spec.metrics.functions else [])]


def folder_keys(spec: Any) -> list[str]:
    """The keys of second models whose value is a folder."""
    return ["embed.text_model"] if is_folder(spec.embed.text_model) else []
