"""The tables of an inference that no other action has: what is asked about, and how it is worked through."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vidqa.spec._field import Count, NotNegative, Positive, Table, key
from vidqa.spec.evaluate_tables import EvaluateEngine, GeneratorName


class InferenceDataset(Table):
    annotation_path: str = key(
        "",
        "What is asked about",
        "A JSON or JSONL file of records, with answers or without; or a video, an image, or a folder of them, each of "
        "which is asked inference.prompt.",
    )
    media_dir: str = key(
        "", "Media", "Folder or tar archive that the records' file names are relative to; empty is the file's own."
    )
    system_prompt: str = key("", "System prompt", "First message of every conversation; the one that was trained with.")


class Inference(Table):
    prompt: str = key(
        "Describe this video briefly.", "Question", "What is asked about a file or a record without a question."
    )
    batch_size: Positive = key(8, "Batch", "Questions answered at once per GPU. 8 fits 80 GB with 8 frames.")
    limit: Annotated[int, Field(ge=-1)] = key(-1, "Most records", "Records to answer; -1 is all.")
    seed: Count = key(1, "Seed", "Seed of sampling.")
    generator: GeneratorName = key(
        "native",
        "Generator",
        "As evaluation.generator: transformers is the reference, native the faster one.",
    )
    skip_saved: bool = key(False, "Continue", "Keep answers that an earlier, stopped run has already given.")
    window_s: NotNegative = key(
        0.0,
        "Window",
        "Seconds of a longer video that are asked about at a time; each window is answered as a clip of its own. 0 "
        "asks about the whole video.",
    )
    overlap_s: NotNegative = key(0.0, "Overlap", "Seconds that a window has in common with the one before it.")


class InferenceEngine(EvaluateEngine):
    on_bad_sample: Literal["fail", "quarantine"] = key(
        "quarantine",
        "Broken videos",
        "quarantine answers the others and says what is wrong with this one; fail stops at the first one.",
    )
