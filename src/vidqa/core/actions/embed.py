"""Embedding: vectors of videos and questions, by which others like them are found."""

from __future__ import annotations

from vidqa.core.actions._base import DataSet
from vidqa.core.actions._reading import reading

NO_QUESTION = "No question."  # stands in for the question of a record that has none; it is never embedded

EMBED = reading(
    "embed",
    "embed",
    data="embedded",
    more_data=(
        DataSet(
            "queries",
            "dataset.query_annotation_path",
            "dataset.query_media_dir",
            root="query",
            needed="for a second set in the same job",
        ),
    ),
    spec="vidqa.spec.models:EmbedSpec",
    tables=("dataset", "model", "embed", "vision", "num_gpus"),
    reads="vidqa.spec.embed_tables:folder_keys",
    rules="vidqa.spec.rules:embed_rules",
    built_from="--model MODEL --set media=FOLDER",
    shorthand={"media": "dataset.annotation_path"},
    outcome="vidqa.jobs.job_results:of_embedding",
    program="vidqa.engine.actions.embed:embed",
    longest=lambda spec: spec.model.max_length,
    sampling={"prompt": lambda spec: NO_QUESTION},
    needs_answers=False,
)
