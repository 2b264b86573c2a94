"""What a finished job has to show: the scores of an evaluation, the best export of a training, its page, and the
command that measures what was trained. A run folder that is gone or damaged has nothing to show."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa.contract.cli import command
from vidqa.contract.files import open_plain, read_object
from vidqa.jobs import records
from vidqa.jobs.records import JobRecord
from vidqa.platforms._base import State

SCORES = (
    "headline",
    "n",
    "accuracy",
    "accuracy_ci95",
    "ci_method",
    "majority_accuracy",
    "majority_answers",
    "one_answer",
)
PAGE = "report.html"


@dataclass(frozen=True)
class Outcome:
    """`facts` for --json, `rows` by name for a person, `next` the commands that follow."""

    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)


def outcome_of(record: JobRecord) -> Outcome:
    """What there is to show of a job that is over; of one that is not, nothing."""
    run = Path(record.run_dir)
    facts: dict[str, Any] = {}
    rows: dict[str, str] = {}
    if not record.state.is_terminal:
        return Outcome()
    if record.state == State.COMPLETE and record.action == "evaluate":
        metrics = read_object(run / "metrics.json")
        if isinstance(metrics.get("headline"), str):
            facts["scores"] = {name: metrics.get(name) for name in SCORES}
            rows["score"] = metrics["headline"]
    if record.action == "train" and (best := read_object(run / "best.json")):
        facts["best"] = best
        rows["best"] = f"{best.get('name')}, by {best.get('metric')} {_shown(best.get('value'))}".rstrip()
    if (run / PAGE).is_file():
        facts["report"] = rows["report"] = str(run / PAGE)
    measured = record.state == State.COMPLETE and record.action == "train" and (run / "best").is_dir()
    return Outcome(facts, rows, [_evaluation(record)] if measured else [])


def _evaluation(trained: JobRecord) -> str:
    """The command that builds the evaluation of what was trained, on what its base model was evaluated on. Where no
    such evaluation is known, EVAL_ROOT stands for the set that the user has to name."""
    known = _evaluated_on(trained)
    words = ["--eval-root", "EVAL_ROOT"]
    if known:
        words = [word for key, value in known.items() for word in ("--set", f"{key}={value}")]
    out = Path(trained.run_dir) / "evaluate.toml"
    where = ("--platform", trained.platform)
    return command("build_spec", "evaluate", "--parent-run", trained.run_dir, *words, *where, "--out", out)


def _evaluated_on(trained: JobRecord) -> dict[str, str]:
    """The annotations and media of the newest evaluation of the model that a training began with."""
    for record in records.scan()[0]:
        if record.action != "evaluate" or record.model != trained.model:
            continue
        if asked := dataset_of(record):
            return {f"dataset.{name}": value for name, value in asked.items()}
    return {}


def dataset_of(evaluation: JobRecord) -> dict[str, str]:
    """The annotations and media of an evaluation, from its run folder's spec; nothing where that cannot be read."""
    try:
        with open_plain(Path(evaluation.run_dir) / "spec.toml") as file:
            asked = tomllib.load(file)["dataset"]
        return {"annotation_path": str(asked["annotation_path"]), "media_dir": str(asked.get("media_dir", ""))}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else ""
