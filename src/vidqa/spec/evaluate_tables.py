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
    system_prompt: str = key("", "System prompt", "First message of every conversation; the one that was trained with.")


@with_compat_keys
class Model(Table):
    model_name: str = key(
        DEFAULT_MODEL, "Model", "hf_model://org/name or a local folder: an export, or an adapter with enable_lora."
    )
    enable_lora: bool = key(False, "LoRA", "model_name is an adapter; it is merged into base_model_path.")
    base_model_path: str = key("", "Base model", "The model under the adapter; only read with enable_lora.")
    dtype: Dtype = key("bfloat16", "Precision", "Precision of the weights.", only=["bfloat16", "float32"])
    max_length: Positive = key(128000, "Longest input", "Most tokens of a prompt and its answer.")


class Task(Table):
    type: Literal["", "general", "its_directionality"] = key(
        "",
        "Task",
        "Empty or general: yes/no is found from the expected answers. its_directionality: left, right, straight; not "
        "for collisions, which are yes or no.",
    )


class SoftAccuracy(Table):
    enabled: bool = key(True, "Soft accuracy", "Also count answers that share enough words with the expected one.")
    f1_threshold: Share = key(0.8, "Threshold", "Word F1 from which an answer counts.")


class Answering(Table):
    """Keys that evaluation and inference share: batching, limits, seed, generator, resuming."""

    batch_size: Positive = key(8, "Batch", "Questions answered at once per GPU. 8 fits 80 GB with 8 frames.")
    limit: Annotated[int, Field(ge=-1)] = key(-1, "Most samples", "Samples to answer; -1 is all.")
    seed: Count = key(1, "Seed", "Seed of sampling.")
    generator: Literal["transformers", "native"] = key(
        "native",
        "Generator",
        "native: our packed forward with a paged cache; on a GPU it answers 64 questions at a time or more, whatever "
        "batch_size says. transformers: its own generate, the reference, which gives the same answers more slowly.",
    )
    skip_saved: bool = key(False, "Continue", "Keep answers that an earlier, stopped run has already given.")


@with_compat_keys
class Evaluation(Answering):
    method: Literal["generate", "score"] = key(
        "generate",
        "Method",
        "generate: the model writes its answer. score: of the answers that a yes/no question or a question with "
        "lettered options allows, the one that it finds likeliest; other questions are answered as before.",
    )
    retries: Count = key(
        0,
        "Retries",
        "How often a question without an answer, by the rules of Cosmos-Reason1's benchmark, is asked again in the "
        "same job, each time with 0.05 more temperature, 256 more tokens and the next seed. results.json and the "
        "scores are of the first answers; retries.json has the others.",
    )
    soft_accuracy: SoftAccuracy = table(SoftAccuracy, "Soft accuracy", "Accuracy by shared words.")


@with_compat_keys
class Generation(Table):
    max_tokens: Positive = key(1024, "Most new tokens", "Longest answer; one that is cut off counts as truncated.")
    temperature: Annotated[float, Field(ge=0, le=2)] = key(
        0.0, "Temperature", "0 takes the likeliest token: repeatable."
    )
    repetition_penalty: Annotated[float, Field(ge=0.1, le=2)] = key(1.0, "Repetition penalty", "1 is none.")
    top_p: Annotated[float, Field(gt=0, le=1)] = key(
        1.0, "Top p", "Of the likeliest tokens, those that have this probability together; 1 leaves every token in."
    )
    top_k: Count = key(0, "Top k", "Of the likeliest tokens, so many; 0 leaves every token in.")
    presence_penalty: Penalty = key(
        0.0,
        "Presence penalty",
        "Taken from the logit of each token that the answer has already; 0 is none, 1.5 is Cosmos-Reason2's own.",
    )
    frequency_penalty: Penalty = key(
        0.0, "Frequency penalty", "Taken from a token's logit each time that the answer has the token; 0 is none."
    )


@with_compat_keys
class Metrics(Table):
    names: list[Literal["bleu", "rouge", "bertscore", "similarity"]] = key(
        ["bleu", "rouge"], "Text metrics", "Scores of free text. bertscore and similarity need a model of their own."
    )
    bertscore_model: str = key(
        "", "BERTScore model", "Folder of the text encoder that BERTScore compares tokens with. No name of the hub."
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
        "FILE.py:FUNCTION of your own. It gets each item of results.json and returns a number, a dictionary of numbers "
        "by their names, or None.",
    )
    functions_timeout_s: PositiveFloat = key(
        600.0, "Scoring time limit", "Seconds in which metrics.functions must have scored all answers."
    )


@with_compat_keys
class Results(Table):
    pass


class WorkersEngine(DecodeEngine):
    decode_workers: Count = key(2, "Decode workers", "Processes per GPU that decode videos.")


class EvaluateEngine(WorkersEngine):
    gpu_memory_gib: PositiveFloat | None = key(
        None, "GPU memory", "GiB that answering may take of each GPU, if others need the rest; unset is all of it."
    )


class InferenceDataset(EvaluateDataset):
    annotation_path: str = key(
        "",
        "What is asked about",
        "A JSON or JSONL file of records, with answers or without; or a video, an image, or a folder of them, each of "
        "which is asked inference.prompt.",
    )
    media_dir: str = key(
        "", "Media", "Folder or tar archive that the records' file names are relative to; empty is the file's own."
    )


class Inference(Answering):
    prompt: str = key(
        "Describe this video briefly.", "Question", "What is asked about a file or a record without a question."
    )
    window_s: NotNegative = key(
        0.0,
        "Window",
        "Seconds of a longer video that are asked about at a time; each window is answered as a clip of its own. 0 "
        "asks about the whole video.",
    )
    overlap_s: NotNegative = key(0.0, "Overlap", "Seconds that a window has in common with the one before it.")


class EmbedDataset(InferenceDataset):
    annotation_path: str = key(
        "",
        "What is embedded",
        "A JSON or JSONL file of records, with answers or without; or a video, an image, or a folder of them, which "
        "have no question.",
    )
    query_annotation_path: str = key(
        "",
        "Queries",
        "A second set, such as the KPI set that gaps were found in, which is embedded in the same job and has a table "
        "of its own (query_embeddings.parquet): what the first set is searched for.",
    )
    query_media_dir: str = key("", "Media of the queries", "As media_dir, for the second set.")
    system_prompt: str = key("", "System prompt", "Taken from a parent run; nothing of it is embedded.")


class Embed(Table):
    batch_size: Positive = key(8, "Batch", "Videos that the vision tower takes at once per GPU.")
    limit: Annotated[int, Field(ge=-1)] = key(-1, "Most records", "Records to embed of each set; -1 is all.")
    dimensions: Count = key(
        0,
        "Dimensions",
        "Numbers in a vector. 0 is all that the model gives (8192 for a video, by Cosmos-Reason2-8B); 512 keeps the "
        "distances to about 6 percent, for pools of a million clips. Compare only what has the same.",
    )
    text_model: str = key(
        "",
        "Text model",
        "Folder of a sentence-transformers model that embeds the questions; empty takes the model's own token "
        "embeddings.",
    )
    skip_saved: bool = key(
        False,
        "Continue",
        "Go on in the folder of an earlier run of this spec. Vectors are kept beside the runs in any case, by file, "
        "frames and model, and are never computed twice.",
    )


class EmbedEngine(WorkersEngine):
    on_bad_sample: Literal["fail", "quarantine"] = key(
        "quarantine",
        "Broken videos",
        "quarantine goes on with the others and says what is wrong with this one; fail stops at the first one.",
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
