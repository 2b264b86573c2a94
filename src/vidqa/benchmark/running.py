"""The protocol on top of evaluation jobs: all questions once, then those without an answer again, warmer and longer.

Each attempt is a job of its own, found again by its spec: a run that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from vidqa.benchmark.questions import Question, read_questions
from vidqa.benchmark.settings import LONGER, WARMER, Settings
from vidqa.contract.cli import command, note
from vidqa.contract.files import write_json, write_text
from vidqa.contract.problem import Problem
from vidqa.evaluation.protocol import protocol_answer
from vidqa.evaluation.results import Item, read_results
from vidqa.jobs import api
from vidqa.preflight import gate
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.models import EvaluateSpec

READY = gate.of_engine("vidqa")


@dataclass
class Outcome:
    """`first` and `last` are the results of the first attempt and of the last one that asked, by question id.
    `attempts` counts how often a question was asked, `runs` are the run folders."""

    questions: list[Question]
    first: dict[str, Item] = field(default_factory=dict)
    last: dict[str, Item] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    runs: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def carry_out(settings: Settings) -> Outcome:
    """Ask every question, and those without an answer again. Raises the problems of the data, the spec and the jobs."""
    questions, problems = read_questions(settings.data, settings.datasets, settings.answer_type, settings.limit)
    outcome, due = Outcome(questions, problems=[*settings.problems, *problems]), questions
    for attempt in range(settings.retries + 1):
        spec = write_attempt(settings, due, attempt)
        note(f"attempt {attempt}: {len(due)} questions; {command('launch', 'evaluate', '--spec', spec, '--wait')}")
        job = api.completed("evaluate", spec, settings.platform, settings.resources, ready=READY)
        run = Path(job.record().run_dir)
        outcome.runs.append(run)
        if not attempt:
            outcome.problems += job.problems
        items = {item["sample_id"]: item for item in read_results(run / "results.json")}
        for question in due:  # by its id: what could not be asked is there, too, and shifts no other answer
            outcome.first.setdefault(question.id, items[question.id])
            outcome.last[question.id] = items[question.id]
            outcome.attempts[question.id] = attempt + 1
        due = [question for question in due if _asks_again(items[question.id], question)]
        if not due:
            break
    return outcome


def _asks_again(item: Item, question: Question) -> bool:
    """Whether there is no answer in a response; a clip that could not be decoded cannot be the next time."""
    empty = not protocol_answer(item["response"], question.prompt, question.answer)
    return empty and item["finish_reason"] != "error"


def write_attempt(settings: Settings, questions: Sequence[Question], attempt: int) -> Path:
    """The annotations and the spec of an attempt. Raises the problems of the spec."""
    place = settings.folder / "attempts"
    annotations = place / f"{attempt}.json"
    data: dict[str, Any] = {
        "dataset.annotation_path": str(annotations),
        "dataset.media_dir": str(settings.home),
        "results_dir": str(place / "runs"),
        "evaluation.limit": -1,
    }
    layers = [*settings.layers, Layer("run_benchmark.py", data)]
    spec = _evaluation(layers)
    if attempt:
        later = {
            "generation.temperature": min(2.0, round(spec.generation.temperature + WARMER * attempt, 4)),
            "generation.max_tokens": spec.generation.max_tokens + LONGER * attempt,
            "evaluation.seed": spec.evaluation.seed + attempt,  # the random numbers of a question depend on it alone
        }
        spec = _evaluation([*layers, Layer("retry", later)])
    path = place / f"{attempt}.toml"
    write_json(annotations, [question.as_record() for question in questions])
    write_text(path, dump(spec))
    return path


def _evaluation(layers: Sequence[Layer]) -> EvaluateSpec:
    """Raises the problems of the spec."""
    return cast(EvaluateSpec, resolve("evaluate", layers).spec)
