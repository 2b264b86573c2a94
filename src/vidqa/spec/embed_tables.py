"""The tables of an embedding that no other action has: what is embedded, and by what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from vidqa.spec._field import Count, Positive, Table, key
from vidqa.spec.evaluate_tables import is_folder
from vidqa.spec.run_tables import DecodeEngine


class EmbedDataset(Table):
    annotation_path: str = key(
        "",
        "What is embedded",
        "A JSON or JSONL file of records, with answers or without; or a video, an image, or a folder of them, which "
        "have no question.",
    )
    media_dir: str = key(
        "", "Media", "Folder or tar archive that the records' file names are relative to; empty is the file's own."
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


class EmbedEngine(DecodeEngine):
    on_bad_sample: Literal["fail", "quarantine"] = key(
        "quarantine",
        "Broken videos",
        "quarantine embeds the others and says what is wrong with this one; fail stops at the first one.",
    )
    decode_workers: Count = key(2, "Decode workers", "Processes per GPU that decode videos.")


def folder_keys(spec: Any) -> list[str]:
    """The keys of second models that name a folder."""
    return ["embed.text_model"] if is_folder(spec.embed.text_model) else []
