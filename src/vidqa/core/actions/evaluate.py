"""Evaluation: a model answers an annotated set of videos, and the answers are scored."""

from __future__ import annotations

from vidqa.core.actions._reading import answering

EVALUATE = answering(
    "evaluate",
    "evaluation",
    data="evaluation",
    spec="vidqa.spec.models:EvaluateSpec",
    tables=(
        *("dataset", "model", "task", "evaluation", "generation", "metrics", "results", "num_gpus"),
        "vision",
    ),
    reads="vidqa.spec.evaluate_tables:path_keys",
    rules="vidqa.spec.rules:evaluate_rules",
    built_from="--eval-root DATA --parent-run RUN",
    nested_in="evaluate",  # as TAO once kept them
    outcome="vidqa.jobs.job_results:of_evaluation",
    program="vidqa.engine.actions.evaluate:evaluate",
    checks="vidqa.preflight.answering_checks:CHECKS",
)
