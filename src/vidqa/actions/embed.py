"""Embedding: vectors of videos and questions, by which others like them are found."""

from __future__ import annotations

from vidqa.actions._base import Action, DataSet, ModelKey, Parent, Resuming, Sampling

NO_QUESTION = "No question."  # stands in for the question of a record that has none; it is never embedded

EMBED = Action(
    name="embed",
    spec="vidqa.spec.models:EmbedSpec",
    tables=("dataset", "model", "embed", "vision", "num_gpus"),
    output_key="results_dir",
    models=(ModelKey("model.model_name"), ModelKey("model.base_model_path", only_with="model.enable_lora")),
    data=(DataSet("embedded", "dataset.annotation_path", "dataset.media_dir", root="eval"),),
    reads="vidqa.spec.embed_tables:folder_keys",
    decoding="engine",
    rules="vidqa.spec.rules:embed_rules",
    built_from="--model MODEL --set media=FOLDER",
    shorthand={"media": "dataset.annotation_path"},
    exclusive=(("vision.fps", "vision.nframes", "SPEC_FPS_AND_NFRAMES"),),
    parent=Parent("best", "vidqa.spec.sources:exported"),
    processes=lambda spec: spec.num_gpus,
    processes_key="num_gpus",
    resuming=Resuming("embed.skip_saved", same_inputs=True),
    outcome="vidqa.jobs.outcome:of_embedding",
    program="vidqa.engine.embed:embed",
    sampling=Sampling(
        planner="vidqa.planning.samples:evaluation_planner",
        vision="vision",
        length_key="model.max_length",
        longest=lambda spec: spec.model.max_length,
        limit=lambda spec: None if spec.embed.limit < 0 else spec.embed.limit,
        prompt=lambda spec: NO_QUESTION,
    ),
    needs_answers=False,
)
