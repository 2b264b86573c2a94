"""The plan of a study: its folder with settings and specs, its first trials, and an estimate, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vidqa import spec
from vidqa.automl import data_share, estimate, specs
from vidqa.automl.decisions import values_text
from vidqa.automl.goals import check_goals
from vidqa.automl.journal import read
from vidqa.automl.problems import STUDY_CHANGED, STUDY_SETTINGS
from vidqa.automl.settings import EVALUATE, FILE, PLANNED, TEST, TRAIN, Finals, checked, write_settings
from vidqa.automl.space import NONE
from vidqa.automl.study import Study, open_study, study_of, with_constant_rate
from vidqa.core import files
from vidqa.core.cli import Result, command, refused_writes
from vidqa.core.metric_names import LOSS
from vidqa.jobs.job_spec import with_absolute_paths
from vidqa.spec import TrainSpec
from vidqa.spec.keys import table_at
from vidqa.spec.layers import parse_set

FIRST = 3  # trials in the preview
# Choices of finals for --runs, those with the most re-runs first.
FINALS: tuple[dict[str, Any], ...] = ({}, {"top": 1}, {"top": 1, "seeds": [1]})
LESS_IS_BETTER = ("loss", "perplexity", "error", "false_positive", "false_negative", "latency")


@dataclass(frozen=True)
class PlanRequest:
    """The options of `run_automl.py plan`, by name. `runs` is the number of all trainings including re-runs; `set` are
    settings by dotted name (study.toml)."""

    spec: Path
    evaluate: Path | None = None
    test: Path | None = None
    metric: Sequence[str] = ()
    range: Sequence[str] = ()
    fix: Sequence[str] = ()
    only: Sequence[str] = ()
    runs: int | None = None
    set: Sequence[str] = ()
    algorithm: str | None = None
    trials: int | None = None
    concurrent: int | None = None


def plan(folder: Path, request: PlanRequest | None) -> Result:
    """Write a study into its folder, or read an existing one, and describe it.

    Raises STUDY_CHANGED for a study that has trials, STUDY_SETTINGS, JOURNAL_BROKEN, and the problems of specs and
    ranges.
    """
    study = open_study(folder) if request is None else write(folder, request)
    if read(folder).history.created is None:  # also reports a damaged journal now
        study.check_beginning()
    first = specs.preview_trials(study, [], FIRST)
    written = _write_first(study, first)
    cost, problems = estimate.study_estimate(study, written[0])
    data = {
        "study": str(folder),
        "settings": study.settings.model_dump(mode="json"),
        "space": study.space_dict,
        "notes": study.notes,
        "rungs": study.rungs,
        "first": [{**row, "spec": str(path)} for row, path in zip(first, written, strict=False)],
        "estimate": cost,
    }
    errors = [problem for problem in problems if problem.severity == "error"]
    files.write_json(folder / PLANNED, {"problems": [problem.as_dict() for problem in errors]})
    following = [] if errors else [command("run_automl", "start", "--study", folder)]
    return Result(data, _text(study, data), problems, following)


def write(folder: Path, request: PlanRequest) -> Study:
    """Write settings, specs and data parts of a new study. Raises the problems of `plan`."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE).exists():
        message = "it contains other files and no study; a plan would replace files such as train.toml"
        raise STUDY_SETTINGS.error(f"--study {folder}", message, "give a new folder")
    if read(folder).log.events:
        raise STUDY_CHANGED.error(folder, "it has begun: its journal has events", "plan a new study in another folder")
    paths = {TRAIN: request.spec, EVALUATE: request.evaluate, TEST: request.test}
    loaded = {name: spec.load(path, "train" if name == TRAIN else "evaluate") for name, path in paths.items() if path}
    settings = checked(_table(request), folder / FILE)
    with refused_writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_settings(folder, settings)
        for name, user_spec in loaded.items():
            files.write_text(folder / name, spec.dump(with_absolute_paths(user_spec)))
        data_share.write(folder, spec.load(folder / TRAIN, "train"), settings.data_share)
    study = with_constant_rate(study_of(folder, settings))
    if study.settings != settings:
        write_settings(folder, study.settings)
    return study


def check_request(request: PlanRequest, base: TrainSpec) -> None:
    """Check, before a study exists, that a search over trainings of the spec `base` is possible. Raises STUDY_SETTINGS
    and the problems of an evaluation's spec."""
    settings = checked(_table(request), Path(FILE))
    check_goals(settings, base, {EVALUATE: spec.load(request.evaluate, "evaluate")} if request.evaluate else {})


def _table(request: PlanRequest) -> dict[str, Any]:
    """The options as a table of study.toml."""
    default = "accuracy" if request.evaluate else LOSS
    table: dict[str, Any] = {
        "goals": [_goal(word) for word in request.metric or (default,)],
        "evaluation": EVALUATE if request.evaluate else None,
        "test": TEST if request.test else None,
        "ranges": {key: value.strip() for key, _, value in (word.partition("=") for word in request.range)},
        "fixed": {
            key: NONE if value is None else value for key, value in parse_set(request.fix, "--fix").table.items()
        },
        "only": [key for word in request.only for key in word.split(",")],
    }
    named = {"algorithm": request.algorithm, "max_trials": request.trials, "max_concurrent": request.concurrent}
    table = {name: value for name, value in {**table, **named}.items() if value is not None}
    for name, value in parse_set(request.set).table.items():
        inner, last = table_at(table, name)
        inner[last] = value
    if request.runs is not None:
        _divide(table, request.runs)
    return table


def _divide(table: dict[str, Any], runs: int) -> None:
    """Divide `runs` trainings into trials and re-runs. Re-runs are at most a third, and at most as many as the finals
    need; finals that the user sets are kept. Raises STUDY_SETTINGS."""
    if table.get("max_trials") is not None:
        raise STUDY_SETTINGS.error("--runs", "--trials counts only trials, --runs also re-runs", "give one of the two")
    finals = table.get("finals")
    if "finals" not in table:
        finals = next((finals for finals in FINALS if 3 * _reruns(finals) <= runs), {"seeds": []})
        table["finals"] = finals
    reruns = _reruns(finals)
    if runs - reruns < 2:
        message = f"{runs} runs leave {runs - reruns} trials and {reruns} re-runs; one trial has the template's values"
        raise STUDY_SETTINGS.error("--runs", message, "allow more runs, or set finals.seeds=[]")
    table["max_trials"] = runs - reruns


def _reruns(finals: Any) -> int:
    """The number of re-runs; 0 for invalid finals, which `checked` reports."""
    try:
        return Finals.model_validate(finals).reruns
    except ValidationError:
        return 0


def _goal(word: str) -> dict[str, str]:
    """Parse NAME or NAME:maximize; without a direction, a loss is minimized and everything else maximized."""
    metric, _, direction = word.partition(":")
    usual = "minimize" if any(part in metric for part in LESS_IS_BETTER) else "maximize"
    return {"metric": metric, "direction": direction or usual}


def _write_first(study: Study, first: list[dict[str, Any]]) -> list[Path]:
    """Write the specs of the first trials as a preview; the trials write their own."""
    steps = study.algorithm.rungs[0][0] if study.by_steps else None
    paths = []
    for row in first:
        folder = study.folder / "plan" / str(row["number"])
        changes = specs.trial_changes(study, row["values"], steps, folder / "runs")
        paths.append(specs.write_training(study, changes, folder))
    return paths


def _text(study: Study, data: dict[str, Any]) -> str:
    settings, reruns = study.settings, study.settings.finals.reruns
    goals = ", ".join(f"{goal.direction} {goal.metric}" for goal in settings.goals)
    lines = [
        f"{settings.max_trials} trials by {settings.algorithm}, {settings.max_concurrent} at a time "
        f"on {settings.platform}: {goals}",
        f"{settings.max_trials + reruns} runs in all: {settings.max_trials} trials and {reruns} re-runs",
    ]
    wide = max(len(parameter.name) for parameter in study.space.parameters)
    template = study.space.default(study.base)
    for parameter in study.space.parameters:
        name, condition = parameter.name, parameter.condition
        only = f"  where {condition.parent} is {condition.values}" if condition else ""
        lines.append(f"  {name:<{wide}}  {parameter.values_text()}  (template {template.get(name)}){only}")
    lines += [f"  {name:<{wide}}  {value}, fixed" for name, value in study.space.fixed.items()]
    lines += [f"  note: {note}" for note in data["notes"]]
    if study.algorithm.has_rungs:
        lines += [
            f"rungs of bracket {at}: {', '.join(map(str, rungs))} steps" for at, rungs in enumerate(data["rungs"])
        ]
    lines.append("first trials:")
    for row in data["first"]:
        lines.append(f"  {row['number']} ({row['proposer']}) {values_text(row['values'])}")
        lines += [f"    repaired: {repair}" for repair in row["repairs"]]
    return "\n".join([*lines, *estimate.lines(data["estimate"])])
