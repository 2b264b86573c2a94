"""Checks before the first job that the jobs of a study measure its goals."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import NoneType

from vidqa.automl.problems import STUDY_SETTINGS
from vidqa.automl.settings import ON_THIS_MACHINE, Settings
from vidqa.core import metric_names
from vidqa.core.problem import ProblemError
from vidqa.data import check_records
from vidqa.evaluation.answers import DIRECTION_TASK
from vidqa.evaluation.metrics import numbers_of, score
from vidqa.evaluation.results import make_item
from vidqa.preflight.gpus import card_of, visible_gpus
from vidqa.spec import EvaluateSpec, Spec, TrainSpec

OF_FUNCTIONS = "functions."  # scores of a user function, whose names are known only from its results
REASONS = ("stop", "length", "scored", "error")  # finish reasons of answers


def check_goals(settings: Settings, base: TrainSpec, evaluations: Mapping[str, Spec]) -> None:
    """Raise STUDY_SETTINGS for a metric that no job of the study measures, with the closest existing names."""
    training = metric_names.training_metrics(base.engine.objective)
    evaluation, scores = evaluations.get(settings.evaluation or ""), set[str]()
    if isinstance(evaluation, EvaluateSpec) and not all(settings.of_training(goal.metric) for goal in settings.goals):
        scores = score_names(evaluation)
    held_out = base.custom.val_dataset.annotation_path or base.train.train_policy.dataset.test_size
    for goal in settings.goals:
        where, of_training = f"goals {goal.metric}", settings.of_training(goal.metric)
        names = training if of_training or not settings.evaluation else scores
        own = OF_FUNCTIONS in names and goal.metric.startswith(OF_FUNCTIONS)
        if names and not own and goal.metric not in names:
            close = ", ".join(difflib.get_close_matches(goal.metric, (*training, *scores), n=3))
            remedy = f"did you mean {close}?" if close else f"choose one of {', '.join(sorted(names)[:40])}"
            remedy += "" if of_training or settings.evaluation else " (scores need --evaluate evaluate.toml)"
            raise STUDY_SETTINGS.error(where, f"no job of the study measures {goal.metric}", remedy)
        if goal.metric.startswith("val/") and not (base.validation.enable and held_out):
            message = f"{goal.metric} is measured by validation, but the training has none"
            remedy = "set validation.enable = true and a validation set (custom.val_dataset, or a test_size)"
            raise STUDY_SETTINGS.error(where, message, remedy)
        if goal.metric in metric_names.ANSWERED and not base.engine.validation_generate:
            message = f"validation measures {goal.metric} by generating answers, but engine.validation_generate is 0"
            raise STUDY_SETTINGS.error(where, message, "set engine.validation_generate, or add an evaluation spec")
        if goal.metric.startswith(metric_names.GPU) and (hardware := _without_peak(settings)):
            message = f"only GPUs with known peak FLOP/s measure it, and trials have {hardware}"
            raise STUDY_SETTINGS.error(where, message, "choose perf/step_s or perf/tokens_per_s, or another platform")


def _without_peak(settings: Settings) -> str:
    """The hardware of the trials if its peak FLOP/s are unknown; "" if they are known, or the hardware is not."""
    if settings.platform not in ON_THIS_MACHINE and settings.resources.gpus != 0:
        return ""
    gpus = visible_gpus() if settings.resources.gpus != 0 else []
    name, card = card_of(gpus)
    return "no GPU" if not gpus else name if card is None else ""


def score_names(evaluation: EvaluateSpec) -> set[str]:
    """The names of all numbers in metrics.json, from scoring the questions without answers; OF_FUNCTIONS if user
    functions add others. Empty if the records cannot be read here, which preflight reports."""
    dataset, task = evaluation.dataset, evaluation.task.type
    task = task if task == DIRECTION_TASK else ""
    try:
        records, _ = check_records(dataset.annotation_path, dataset.media_dir)
    except ProblemError:
        return set()
    if not records:
        return set()
    items = [make_item(record, None, task_type=task) for record in records]
    scores = score(items, task, text_metrics=evaluation.metrics.names)
    names = {*numbers_of(scores, types=(int, float, NoneType)), *(f"finish_reason.{reason}" for reason in REASONS)}
    second = [name for metric in evaluation.metrics.names for name in metric_names.OF_SECOND_MODELS.get(metric, ())]
    names |= {f"text.{name}" for name in second if "text" in scores}
    return names | {OF_FUNCTIONS} if evaluation.metrics.functions else names
