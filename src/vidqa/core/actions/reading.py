"""Actions that apply an unchanged model to a set of records: evaluation, inference, embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vidqa.core.actions._base import Action, DataSet, ModelKey, Parent, RecordSampling, Resuming


def reading(
    name: str,
    table: str,
    *,
    data: str,
    more_data: tuple[DataSet, ...] = (),
    longest: Callable[[Any], int],
    sampling: Mapping[str, Any] | None = None,
    **others: Any,
) -> Action:
    """Declare an action over a set of records, called `data` in reports, and `more_data`. `table` is the spec table of
    its settings: batch_size, skip_saved, limit. `longest` is the maximum number of tokens of a record."""

    def limit(spec: Any) -> int | None:
        most = getattr(spec, table).limit
        return None if most < 0 else most

    return Action(
        name=name,
        output_key="results_dir",
        models=(ModelKey("model.model_name"), ModelKey("model.base_model_path", only_with="model.enable_lora")),
        data=(DataSet(data, "dataset.annotation_path", "dataset.media_dir", root="eval"), *more_data),
        decoding="engine",
        exclusive=(("vision.fps", "vision.nframes"),),
        parent=Parent("best", "vidqa.spec.parent_layers:exported"),
        processes=lambda spec: spec.num_gpus,
        processes_key="num_gpus",
        resuming=Resuming(f"{table}.skip_saved", same_inputs=True),
        sampling=RecordSampling(
            planner="vidqa.planning.samples:evaluation_planner",
            vision="vision",
            length_key="model.max_length",
            longest=longest,
            limit=limit,
            **(sampling or {}),
        ),
        **others,
    )


def answering(name: str, table: str, **others: Any) -> Action:
    """Declare an action whose model generates answers; its table also has seed and generator."""

    def longest(spec: Any) -> int:  # leaves room for the answer
        return spec.model.max_length - spec.generation.max_tokens

    return reading(name, table, longest=longest, answering=table, **others)


# Evaluation: a model answers an annotated set of videos, and the answers are scored.
EVALUATE = answering(
    "evaluate",
    "evaluation",
    data="evaluation",
    spec="vidqa.spec.models:EvaluateSpec",
    tables=("dataset", "model", "task", "evaluation", "generation", "metrics", "results", "num_gpus", "vision"),
    reads="vidqa.spec.evaluate_tables:path_keys",
    rules="vidqa.spec.rules:evaluate_rules",
    build_options="--eval-root DATA --parent-run RUN",
    nested_in="evaluate",  # as in earlier versions of TAO
    outcome="vidqa.jobs.job_results:of_evaluation",
    program="vidqa.engine.actions.evaluate:evaluate",
    checks="vidqa.preflight.registry:ANSWERING",
)

# Inference: a model answers questions about videos and images without annotated answers.
INFERENCE = answering(
    "inference",
    "inference",
    data="asked",
    spec="vidqa.spec.models:InferenceSpec",
    tables=("dataset", "model", "inference", "vision", "generation", "num_gpus"),
    rules="vidqa.spec.rules:inference_rules",
    build_options="--parent-run RUN --set media=FOLDER",
    shorthand={  # TAO's own keys
        "model_path": "model.model_name",
        "base_model_path": "model.base_model_path",
        "enable_lora": "model.enable_lora",
        "media": "dataset.annotation_path",
        "prompt": "inference.prompt",
        "fps": "vision.fps",
        "total_pixels": "vision.total_pixels",
        "max_new_tokens": "generation.max_tokens",
    },
    outcome="vidqa.jobs.job_results:of_inference",
    program="vidqa.engine.actions.inference:inference",
    sampling={
        "prompt": lambda spec: spec.inference.prompt,
        "windows": lambda spec: (spec.inference.window_s, spec.inference.overlap_s),
    },
    needs_answers=False,
)

NO_QUESTION = "No question."  # placeholder for the question of a record without one; it is never embedded

# Embedding: vectors of videos and questions for similarity search.
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
            required_when="for a second set in the same job",
        ),
    ),
    spec="vidqa.spec.models:EmbedSpec",
    tables=("dataset", "model", "embed", "vision", "num_gpus"),
    reads="vidqa.spec.evaluate_tables:folder_keys",
    checks="vidqa.preflight.registry:EMBEDDING",
    rules="vidqa.spec.rules:embed_rules",
    build_options="--model MODEL --set media=FOLDER",
    shorthand={"media": "dataset.annotation_path"},
    outcome="vidqa.jobs.job_results:of_embedding",
    program="vidqa.engine.actions.embed:embed",
    longest=lambda spec: spec.model.max_length,
    sampling={"prompt": lambda spec: NO_QUESTION},
    needs_answers=False,
)
