"""What a job that is over has to show, by the functions that its action names: the scores of an evaluation, the best
export of a training, its page, and the commands that follow. A run folder that is gone or damaged has nothing to show.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa import actions
from vidqa.contract.cli import command
from vidqa.contract.files import open_plain, read_object
from vidqa.contract.problem import ProblemError
from vidqa.contract.run_folder import ANSWERS, EMBEDDINGS
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
    if not record.state.is_terminal:
        return Outcome()
    try:
        show = actions.action(record.action).outcome
    except ProblemError:  # of a plug-in that is not here any more
        show = None
    found = actions.resolve(show)(record) if show else Outcome()
    page = Path(record.run_dir) / PAGE
    shown = {"report": str(page)} if page.is_file() else {}
    return Outcome({**found.facts, **shown}, {**found.rows, **shown}, found.next)


def of_training(record: JobRecord) -> Outcome:
    """The best export, and the command that measures it."""
    run = Path(record.run_dir)
    is_measured = record.state == State.COMPLETE and (run / "best").is_dir()
    following = [_evaluation(record)] if is_measured else []
    best = read_object(run / "best.json")
    if not best:
        return Outcome(next=following)
    row = f"{best.get('name')}, by {best.get('metric')} {_shown(best.get('value'))}".rstrip()
    return Outcome({"best": best}, {"best": row}, following)


def of_evaluation(record: JobRecord) -> Outcome:
    """The scores, and the command that looks at what the model got wrong."""
    if record.state != State.COMPLETE:
        return Outcome()
    metrics = read_object(Path(record.run_dir) / "metrics.json")
    if not isinstance(metrics.get("headline"), str):
        return Outcome(next=_gaps(record))
    scores = {name: metrics.get(name) for name in SCORES}
    return Outcome({"scores": scores}, {"score": metrics["headline"]}, _gaps(record))


def of_inference(record: JobRecord) -> Outcome:
    """Where the answers are, and how many records have one."""
    if record.state != State.COMPLETE:
        return Outcome()
    run = Path(record.run_dir)
    summary = read_object(run / "summary.json")
    statuses = summary.get("statuses")
    if not isinstance(statuses, dict):
        return Outcome()
    shown = ", ".join(f"{count} {status}" for status, count in statuses.items())
    facts = {"answers": str(run / ANSWERS), "statuses": statuses}
    return Outcome(facts, {"answers": str(run / ANSWERS), "records": shown})


def of_embedding(record: JobRecord) -> Outcome:
    """Where the vectors are, and how many records have one."""
    run = Path(record.run_dir)
    summary = read_object(run / "summary.json") if record.state == State.COMPLETE else {}
    if not isinstance(counts := summary.get("counts"), dict):
        return Outcome()
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    facts = {"embeddings": str(run / EMBEDDINGS), "counts": counts}
    return Outcome(facts, {"embeddings": str(run / EMBEDDINGS), "records": shown})


def _gaps(record: JobRecord) -> list[str]:
    """The command that looks at what an evaluation got wrong, as long as its run folder is there."""
    words = ["--results-dir", record.run_dir, "--gaps-parquet", f"{record.run_dir}/gaps.parquet"]
    if not (asked := dataset_of(record)):
        return []
    words += ["--kpi-ann-path", asked["annotation_path"]]
    words += ["--kpi-media-path", asked["media_dir"]] if asked["media_dir"] else []
    return [command("analyze_gaps", *words)]


def _evaluation(trained: JobRecord) -> str:
    """The command that builds the evaluation of what was trained, on what its base model was evaluated on. Where no
    such evaluation is known, EVAL_ROOT stands for the set that the user has to name."""
    known = _evaluated_on(trained)
    words = ["--eval-root", "EVAL_ROOT"]
    if known:
        words = [word for key, value in known.items() for word in ("--set", f"{key}={value}")]
    measure = actions.action(trained.action).measured_by
    out = Path(trained.run_dir) / f"{measure}.toml"
    where = ("--platform", trained.platform)
    return command("build_spec", measure, "--parent-run", trained.run_dir, *words, *where, "--out", out)


def _evaluated_on(trained: JobRecord) -> dict[str, str]:
    """The annotations and media of the newest evaluation of the model that a training began with."""
    measure = actions.action(trained.action).measured_by
    for record in records.scan()[0]:
        if record.action != measure or record.model != trained.model:
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
