"""The results of a job that is over, from the functions that its action names: the scores of an evaluation, the best
export of a training, its page, and the next commands. A missing or damaged run folder gives no results.
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
from vidqa.contract.run_folder import ANSWERS, EMBEDDINGS, QUERY_EMBEDDINGS
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
class JobOutcome:
    """`facts` for --json, `rows` by name for a person, `next` for the next commands."""

    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)


def outcome_of(record: JobRecord) -> JobOutcome:
    """The results of a job that is over; empty for others."""
    if not record.state.is_terminal:
        return JobOutcome()
    try:
        show = actions.action(record.action).outcome
    except ProblemError:  # the plug-in of the action is not installed any more
        show = None
    found = actions.resolve(show)(record) if show else JobOutcome()
    page = Path(record.run_dir) / PAGE
    shown = {"report": str(page)} if page.is_file() else {}
    return JobOutcome({**found.facts, **shown}, {**found.rows, **shown}, found.next)


def of_training(record: JobRecord) -> JobOutcome:
    """The best export, and the command that evaluates it."""
    run = Path(record.run_dir)
    is_measured = record.state == State.COMPLETE and (run / "best").is_dir()
    following = [_evaluation(record)] if is_measured else []
    best = read_object(run / "best.json")
    if not best:
        return JobOutcome(next=following)
    row = f"{best.get('name')}, by {best.get('metric')} {_shown(best.get('value'))}".rstrip()
    return JobOutcome({"best": best}, {"best": row}, following)


def of_evaluation(record: JobRecord) -> JobOutcome:
    """The scores, and the command that analyzes wrong answers."""
    if record.state != State.COMPLETE:
        return JobOutcome()
    metrics = read_object(Path(record.run_dir) / "metrics.json")
    if not isinstance(metrics.get("headline"), str):
        return JobOutcome(next=_gaps(record))
    scores = {name: metrics.get(name) for name in SCORES}
    scores |= {"functions": metrics["functions"]} if "functions" in metrics else {}
    return JobOutcome({"scores": scores}, {"score": metrics["headline"]}, _gaps(record))


def of_inference(record: JobRecord) -> JobOutcome:
    """The file of answers, and the number of records with one."""
    if record.state != State.COMPLETE:
        return JobOutcome()
    run = Path(record.run_dir)
    summary = read_object(run / "summary.json")
    statuses = summary.get("statuses")
    if not isinstance(statuses, dict):
        return JobOutcome()
    shown = ", ".join(f"{count} {status}" for status, count in statuses.items())
    facts = {"answers": str(run / ANSWERS), "statuses": statuses}
    return JobOutcome(facts, {"answers": str(run / ANSWERS), "records": shown})


def of_embedding(record: JobRecord) -> JobOutcome:
    """Where the vectors are, and how many records have one."""
    run = Path(record.run_dir)
    summary = read_object(run / "summary.json") if record.state == State.COMPLETE else {}
    if not isinstance(counts := summary.get("counts"), dict):
        return JobOutcome()
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    tables = {"embeddings": str(run / EMBEDDINGS)}
    if (queries := run / QUERY_EMBEDDINGS).is_file():
        tables["query_embeddings"] = str(queries)
    return JobOutcome({**tables, "counts": counts}, {**tables, "records": shown})


def of_quantization(record: JobRecord) -> JobOutcome:
    """The quantized folder, its size beside the model's, its proof, and the command that evaluates it."""
    run = Path(record.run_dir)
    facts = read_object(run / "quantize.json")
    sizes, proof, gate = (facts.get(name) for name in ("bytes", "proof", "gate"))
    if not isinstance(sizes, dict) or not isinstance(proof, dict):
        return JobOutcome()
    rows = {
        "model": str(facts.get("folder")),
        "scheme": str(facts.get("scheme")),
        "size": f"{sizes.get('quantized', 0) / 1e9:.2f} GB, {sizes.get('model', 0) / 1e9:.2f} GB before",
        "loss": f"{_shown(proof.get('quantized_loss'))}, {_shown(proof.get('loss'))} before",
    }
    if isinstance(gate, dict):
        rows["accuracy"] = str(gate.get("sentence"))
    return JobOutcome({"quantization": facts}, rows, [] if gate else [_evaluation(record)])


def _gaps(record: JobRecord) -> list[str]:
    """The command that analyzes an evaluation's wrong answers, while its run folder exists."""
    words = ["--results-dir", record.run_dir, "--gaps-parquet", f"{record.run_dir}/gaps.parquet"]
    if not (dataset := dataset_of(record)):
        return []
    words += ["--kpi-ann-path", dataset["annotation_path"]]
    words += ["--kpi-media-path", dataset["media_dir"]] if dataset["media_dir"] else []
    return [command("analyze_gaps", *words)]


def _evaluation(trained: JobRecord) -> str:
    """The command that builds an evaluation of the trained model, on the data of its base model's evaluation. Without
    such an evaluation, EVAL_ROOT stands for the data that the user names."""
    dataset = _evaluated_on(trained)
    words = ["--eval-root", "EVAL_ROOT"]
    if dataset:
        words = [word for key, value in dataset.items() for word in ("--set", f"{key}={value}")]
    measure = actions.action(trained.action).measured_by
    out = Path(trained.run_dir) / f"{measure}.toml"
    where = ("--platform", trained.platform)
    return command("build_spec", measure, "--parent-run", trained.run_dir, *words, *where, "--out", out)


def _evaluated_on(trained: JobRecord) -> dict[str, str]:
    """The annotations and media of the newest evaluation of a training's base model."""
    measure = actions.action(trained.action).measured_by
    for record in records.scan()[0]:
        if record.action != measure or record.model != trained.model:
            continue
        if dataset := dataset_of(record):
            return {f"dataset.{name}": value for name, value in dataset.items()}
    return {}


def dataset_of(evaluation: JobRecord) -> dict[str, str]:
    """The annotations and media of an evaluation, from its run folder's spec; empty where that cannot be read."""
    try:
        with open_plain(Path(evaluation.run_dir) / "spec.toml") as file:
            dataset = tomllib.load(file)["dataset"]
        return {"annotation_path": str(dataset["annotation_path"]), "media_dir": str(dataset.get("media_dir", ""))}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else ""
