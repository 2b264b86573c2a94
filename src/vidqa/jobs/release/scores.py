"""The evaluations of an export, and of the model that it started from: those whose recipe names these very weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.files import read_object
from vidqa.evaluation.results import compare_recipes
from vidqa.jobs import records
from vidqa.jobs.job_results import dataset_of
from vidqa.jobs.release.source import ExportSource
from vidqa.planning.resume_compat import same_weights

RECIPE, METRICS = "recipe.json", "metrics.json"


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation; `name` is that of its set of questions."""

    folder: Path
    name: str
    recipe: dict[str, Any]
    metrics: dict[str, Any]

    @property
    def weights(self) -> str:
        model = self.recipe.get("model")
        return str(model.get("sha256") or model.get("sha256_sampled")) if isinstance(model, dict) else ""


@dataclass(frozen=True)
class Scores:
    """An evaluation of the export, and one of its base model that compares with it."""

    export: Evaluation
    base: Evaluation | None

    def as_dict(self) -> dict[str, Any]:
        export_figures = {"folder": str(self.export.folder), "set": self.export.name, **_figures(self.export.metrics)}
        return {**export_figures, "base": _figures(self.base.metrics) if self.base else None}


def _figures(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {key: metrics.get(key) for key in ("n", "accuracy", "accuracy_ci95", "majority_accuracy")}


def scores_of(source: ExportSource, out: Path) -> list[Scores]:
    """Every way in which the export, or what was made of it in `out`, was evaluated; of equal ways the newest."""
    evaluations = sorted(
        _evaluations(source), key=lambda evaluation: (evaluation.folder / METRICS).stat().st_mtime, reverse=True
    )
    bases = [evaluation for evaluation in evaluations if same_weights(evaluation.weights, source.base)]
    scores: list[Scores] = []
    for evaluation in evaluations:
        same = any(not compare_recipes(evaluation.recipe, other.export.recipe) for other in scores)
        own = source.is_of(evaluation.weights) or same_weights(evaluation.weights, out)
        if own and not same:
            base = next((other for other in bases if not compare_recipes(evaluation.recipe, other.recipe)), None)
            scores.append(Scores(evaluation, base))
    return sorted(scores, key=lambda evaluation: (evaluation.export.name, str(evaluation.export.folder)))


def _evaluations(source: ExportSource) -> Iterator[Evaluation]:
    """Those beside the run, in the folders beside that of its runs, and of the jobs that were launched here."""
    home = source.run.path
    beside = [recipe.parent for pattern in ("*", "*/*") for recipe in home.parent.parent.glob(f"{pattern}/{RECIPE}")]
    launched = [Path(record.run_dir) for record in records.scan()[0]]
    for folder in dict.fromkeys(path.resolve() for path in [*beside, *launched]):
        recipe, metrics = read_object(folder / RECIPE), read_object(folder / METRICS)
        if recipe and isinstance(metrics.get("accuracy"), int | float):
            yield Evaluation(folder, _set_of(folder), recipe, metrics)


def _set_of(folder: Path) -> str:
    """A short name for the questions of an evaluation: the folder of the annotations, or their file's name."""
    if not (dataset := dataset_of(folder)):
        return "questions"
    path = Path(dataset["annotation_path"])
    return path.parent.name if path.stem == "annotations" and path.parent.name else path.stem
