"""The protocol as one evaluation job: all questions once, then those without an answer again, warmer and longer.

The job is found again by its spec: a run that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa.benchmark.questions import Question, read_questions
from vidqa.benchmark.settings import Settings
from vidqa.core.cli import command, note
from vidqa.core.files import parse_json, write_json, write_text
from vidqa.core.problem import Problem
from vidqa.evaluation.problems import RESULTS_FORMAT
from vidqa.evaluation.results import Item, judged, read_results
from vidqa.jobs import api
from vidqa.preflight import launch_gate
from vidqa.spec import Layer, dump, resolve

MOST_BYTES = 1 << 30
READY = launch_gate.of_engine("vidqa")


@dataclass
class Outcome:
    """`first` and `last` are the results of the first attempt and of the last one that asked, by question id.
    `attempts` counts how often a question was asked, `run` is the run folder."""

    questions: list[Question]
    run: Path
    first: dict[str, Item] = field(default_factory=dict)
    last: dict[str, Item] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def run_benchmark(settings: Settings) -> Outcome:
    """Ask every question, and those without an answer again. Raises the problems of the data, the spec and the jobs."""
    questions, problems = read_questions(settings.data, settings.datasets, settings.answer_type, settings.limit)
    spec = write_spec(settings, questions)
    note(f"{len(questions)} questions; {command('launch', 'evaluate', '--spec', spec, '--wait')}")
    job = api.completed("evaluate", spec, settings.platform, settings.resources, ready=READY)
    run = Path(job.record().run_dir)
    first = {item["sample_id"]: item for item in read_results(run / "results.json")}
    # By id: failed questions are in the results, too, and shift no other answer.
    outcome = Outcome(questions, run, {question.id: first[question.id] for question in questions})
    outcome.problems += [*settings.problems, *problems, *job.problems]
    outcome.last, outcome.attempts = dict(outcome.first), dict.fromkeys(outcome.first, 1)
    for row in read_retries(run):
        name = row["sample_id"]
        outcome.last[name] = judged({**first[name], "response": row["response"], "finish_reason": row["finish_reason"]})
        outcome.attempts[name] = row["attempt"] + 1
    return outcome


def read_retries(run: Path) -> list[dict[str, Any]]:
    """The answers of further attempts, in their order; none where nothing was asked again. Raises RESULTS_FORMAT."""
    file = run / "retries.json"
    if not file.is_file():
        return []
    try:
        rows = parse_json(file, MOST_BYTES)
        kinds = {"attempt": int, "sample_id": str, "response": str, "finish_reason": str}
        if all(type(row[name]) is kind for row in rows for name, kind in kinds.items()):
            return sorted(rows, key=lambda row: row["attempt"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    remedy = "remove the run folder and run the benchmark again"
    raise RESULTS_FORMAT.error(file, "it cannot be read as the answers of further attempts", remedy)


def write_spec(settings: Settings, questions: Sequence[Question]) -> Path:
    """The annotations and the spec of the job. Raises the problems of the spec."""
    place = settings.folder / "job"
    annotations = place / "questions.json"
    data: dict[str, Any] = {
        "dataset.annotation_path": str(annotations),
        "dataset.media_dir": str(settings.home),
        "results_dir": str(place / "runs"),
        "evaluation.limit": -1,
        "evaluation.retries": settings.retries,
    }
    spec = resolve("evaluate", [*settings.layers, Layer("run_benchmark.py", data)]).spec
    path = place / "evaluate.toml"
    write_json(annotations, [question.as_record() for question in questions])
    write_text(path, dump(spec))
    return path
