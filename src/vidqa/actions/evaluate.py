"""Evaluation: a model answers an annotated set of videos, and the answers are scored."""

from __future__ import annotations

from typing import Any

from vidqa.actions._base import Action, DataSet, ModelKey, Parent, Resuming, Sampling


def longest_prompt(spec: Any) -> int:
    """Tokens that a question may have: the answer has room after it."""
    return spec.model.max_length - spec.generation.max_tokens


def vllm_python(spec: Any, generator: str) -> dict[str, str]:
    """The key of the other Python that a generator needs, and what it must have."""
    return {"engine.vllm.python": "vllm"} if generator == "vllm" else {}


EVALUATE = Action(
    name="evaluate",
    spec="vidqa.spec.models:EvaluateSpec",
    tables=(
        *("dataset", "model", "task", "evaluation", "generation", "metrics", "results", "num_gpus"),
        "vision",
    ),
    output_key="results_dir",
    models=(ModelKey("model.model_name"), ModelKey("model.base_model_path", only_with="model.enable_lora")),
    data=(DataSet("evaluation", "dataset.annotation_path", "dataset.media_dir", root="eval"),),
    reads="vidqa.spec.metric_models:folder_keys",
    decoding="engine",
    rules="vidqa.spec.rules:evaluate_rules",
    built_from="--eval-root DATA --parent-run RUN",
    exclusive=(("vision.fps", "vision.nframes", "SPEC_FPS_AND_NFRAMES"),),
    nested_in="evaluate",  # as TAO once kept them
    parent=Parent("best", "vidqa.spec.sources:exported"),
    processes=lambda spec: spec.num_gpus,
    processes_key="num_gpus",
    interpreters=lambda spec: vllm_python(spec, spec.evaluation.generator),
    resuming=Resuming("evaluation.skip_saved", same_inputs=True),
    outcome="vidqa.jobs.outcome:of_evaluation",
    program="vidqa.engine.evaluate:evaluate",
    answering="evaluation",
    checks="vidqa.preflight.answering_checks:CHECKS",
    sampling=Sampling(
        planner="vidqa.planning.samples:evaluation_planner",
        vision="vision",
        length_key="model.max_length",
        longest=longest_prompt,
        limit=lambda spec: None if spec.evaluation.limit < 0 else spec.evaluation.limit,
    ),
)
