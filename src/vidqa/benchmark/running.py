"""Run the benchmark, from settings to scores.

The settings come from options and a configuration file of Cosmos-Reason1. Its protocol is one evaluation job: all
questions once, then those without an answer again, with higher temperature and more tokens. The job is found by its
spec, so that a killed run can be resumed. Scores are by subset, without and with retries; also Cosmos-Reason1's files.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from vidqa.benchmark.questions import Question, home_of, read_questions
from vidqa.core.cli import command, note
from vidqa.core.files import absolute, parse_json, write_json, write_text
from vidqa.core.problem import Problem
from vidqa.evaluation.cosmos_protocol import PROTOCOL, protocol_answer, protocol_correct, protocol_scores, reasoning_of
from vidqa.evaluation.metrics import score
from vidqa.evaluation.problems import RESULTS_FORMAT
from vidqa.evaluation.results import Item, dotted, judged, read_results
from vidqa.jobs import api
from vidqa.jobs.resources import Resources
from vidqa.preflight import launch_gate
from vidqa.spec import Layer, dump, parse_set, resolve
from vidqa.spec.layers import read_layer
from vidqa.spec.parent_layers import evaluated_model
from vidqa.spec.problems import VALUE
from vidqa.spec.rules import BARE_ID

SCHEMA = "vidqa.benchmark.v1"
ALL = "all"
MOST_BYTES = 1 << 30  # of the file with the answers of retries
NEEDED = "set datasets, model.model_name, evaluation.answer_type (letter or reasoning) and generation.* in --config"
# Keys of a configuration that an evaluation's spec lacks, and their defaults.
OWN = {"datasets": (), "model.model_name": None, "evaluation.answer_type": "reasoning", "generation.max_retries": 10}
ANSWER_TYPES = ("letter", "reasoning")
SYSTEM = "Answer the questions."
LETTER = {"generation.temperature": 0.0, "generation.max_tokens": 10}  # overrides the configuration
PROTOCOL_KEYS = {
    "generation.temperature": 0.6,
    "generation.top_p": 0.95,
    "generation.max_tokens": 1024,
    "dataset.system_prompt": SYSTEM,
    "model.max_length": 128000,
    "vision.fps": 4,
    "evaluation.seed": 1,
    "engine.on_bad_sample": "quarantine",  # a broken clip counts as a wrong answer, and does not stop the run
}


@dataclass(frozen=True)
class Settings:
    """The settings of a run. `home` holds the subsets; results go to `folder`, named by model and answer type as in
    Cosmos-Reason1. `layers` are those of an evaluation without its data; later ones override earlier ones."""

    home: Path
    folder: Path
    datasets: tuple[str, ...]
    model: str
    answer_type: str
    retries: int
    limit: int | None
    layers: tuple[Layer, ...]
    problems: tuple[Problem, ...]
    platform: str
    resources: Resources


def settle(
    data: Path,
    out: Path,
    platform: str,
    resources: Resources,
    *,
    datasets: Sequence[str] = (),
    model: str | None = None,
    which: str | None = None,
    answer_type: str | None = None,
    retries: int | None = None,
    limit: int | None = None,
    config: Path | None = None,
    sets: Sequence[str] = (),
) -> Settings:
    """Combine a user's options; for None and an empty sequence the value of `config`, or else of the protocol, is used.
    Raises SPEC_VALUE, and the problems of the file and of the model."""
    table, problems = _configured(config)
    own = {name: table.pop(name, default) for name, default in OWN.items()}
    model, datasets = model or own["model.model_name"], datasets or own["datasets"]
    if not isinstance(model, str) or not model:
        raise VALUE.error("--model", "no option and no --config names a model", NEEDED)
    if not datasets:
        raise VALUE.error("--datasets", "no option and no --config names a subset", NEEDED)
    answer_type = answer_type or own["evaluation.answer_type"]
    if answer_type not in ANSWER_TYPES:
        raise VALUE.error("evaluation.answer_type", f"{answer_type!r} is not one of {', '.join(ANSWER_TYPES)}", NEEDED)
    retries = own["generation.max_retries"] if retries is None else retries
    if not isinstance(retries, int) or retries < 0:
        raise VALUE.error("generation.max_retries", f"{retries!r} is not a number of retries", NEEDED)
    model = f"hf_model://{model}" if BARE_ID.match(model) and not os.path.isdir(model) else model
    layers = (
        Layer("protocol", PROTOCOL_KEYS),
        Layer(str(config), table),
        Layer("answers of a letter", LETTER if answer_type == "letter" else {}),
        Layer("--model", evaluated_model(model, which)),
        parse_set(sets),
    )
    home = home_of(absolute(data))
    folder = absolute(out) / model.rstrip("/").rsplit("/", 1)[-1] / answer_type
    names = tuple(dict.fromkeys(datasets))
    return Settings(
        home, folder, names, model, answer_type, retries, limit, layers, tuple(problems), platform, resources
    )


def _configured(config: Path | None) -> tuple[dict[str, Any], list[Problem]]:
    """The keys of a configuration file by dotted name, and warnings about those without a meaning here."""
    if config is None:
        return {}, []
    table, problems = dotted(read_layer(config).table), list[Problem]()
    datasets = table.get("datasets", [])
    if not isinstance(datasets, list) or not all(isinstance(name, str) for name in datasets):
        raise VALUE.error(f"{config} datasets", f"{datasets!r:.100} is not a list of names", NEEDED)
    table["evaluation.skip_saved"] = True  # always resume an earlier run
    if table.pop("model.tp_size", 1) != 1:
        message, remedy = "a GPU holds the whole model here", "--set num_gpus=N answers on N GPUs, N times as fast"
        problems.append(VALUE.at("model.tp_size", message, remedy, severity="warning"))
    if "evaluation.fps" in table:
        table["vision.fps"] = table.pop("evaluation.fps")
    for name in ("model.tokenizer_model_name", "evaluation.num_processes"):
        table.pop(name, None)
    return {name: value for name, value in table.items() if value not in (None, {})}, problems


@dataclass
class Outcome:
    """Answers of a run. `first` and `last` are the results of the first and the last attempt, by question id.
    `attempts` is the number of attempts for each question, `run` is the run folder."""

    questions: list[Question]
    run: Path
    first: dict[str, Item] = field(default_factory=dict)
    last: dict[str, Item] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def run_benchmark(settings: Settings) -> Outcome:
    """Ask every question, and those without an answer again. Raises the problems of the data, the spec and the jobs."""
    questions, problems = read_questions(settings.home, settings.datasets, settings.answer_type, settings.limit)
    spec = write_spec(settings, questions)
    note(f"{len(questions)} questions; {command('launch', 'evaluate', '--spec', spec, '--wait')}")
    job = api.completed("evaluate", spec, settings.platform, settings.resources, ready=launch_gate.ready)
    run = Path(job.record().run_dir)
    first = {item["sample_id"]: item for item in read_results(run / "results.json")}
    # By id: failed questions are in the results, too, so that indices stay aligned.
    outcome = Outcome(questions, run, {question.id: first[question.id] for question in questions})
    outcome.problems += [*settings.problems, *problems, *job.problems]
    outcome.last, outcome.attempts = dict(outcome.first), dict.fromkeys(outcome.first, 1)
    for retry in _retries(run):
        answer = {"response": retry.response, "finish_reason": retry.finish_reason}
        outcome.last[retry.sample_id] = judged({**first[retry.sample_id], **answer})
        outcome.attempts[retry.sample_id] = retry.attempt + 1
    return outcome


class _Retry(msgspec.Struct):
    attempt: int
    sample_id: str
    response: str
    finish_reason: str


def _retries(run: Path) -> list[_Retry]:
    """The answers of retries, in their order; empty if there were none. Raises RESULTS_FORMAT."""
    file = run / "retries.json"
    if not file.is_file():
        return []
    try:
        retries = msgspec.convert(parse_json(file, MOST_BYTES), list[_Retry])
    except (OSError, ValueError) as broken:
        remedy = "remove the run folder and run the benchmark again"
        message = f"it cannot be read as answers of further attempts: {broken}"
        raise RESULTS_FORMAT.error(file, message, remedy) from broken
    return sorted(retries, key=lambda retry: retry.attempt)


def write_spec(settings: Settings, questions: Sequence[Question]) -> Path:
    """Write the annotations and the spec of the job. Raises the problems of the spec."""
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


@cache
def published() -> list[dict[str, Any]]:
    """Published scores, in percent by subset, each with its source."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def report(settings: Settings, outcome: Outcome) -> dict[str, Any]:
    """The content of benchmark.json. `one_shot` and `with_retries` are scored as in the benchmark, `own_rules` is the
    accuracy of the first answers by our rules. Shares are 0..1."""
    rows = {name: _row(outcome, [q for q in outcome.questions if q.dataset == name]) for name in settings.datasets}
    rows[ALL] = _row(outcome, outcome.questions)
    name = settings.folder.parent.name
    return {
        "schema": SCHEMA,
        "protocol": PROTOCOL,
        "model": settings.model,
        "answer_type": settings.answer_type,
        "retries": settings.retries,
        "subsets": rows,
        "published": [row for row in published() if row["model"].rsplit("/", 1)[-1] == name],
        "run": str(outcome.run),
        "results": str(settings.folder),
    }


def _row(outcome: Outcome, questions: Sequence[Question]) -> dict[str, Any]:
    first, last = ([items[question.id] for question in questions] for items in (outcome.first, outcome.last))
    own = score(first)
    return {
        "n": len(questions),
        "one_shot": protocol_scores(first),
        "with_retries": protocol_scores(last),
        "own_rules": {name: own[name] for name in ("accuracy", "accuracy_ci95", "correct")},
        "asked_again": sum(outcome.attempts[question.id] > 1 for question in questions),
        "failed": sum(item["finish_reason"] == "error" for item in last),
    }


def write_files(settings: Settings, outcome: Outcome, scores: Mapping[str, Any]) -> None:
    """Write benchmark.json, and SUBSET/VIDEO.json for every video, in Cosmos-Reason1's format. Files of an earlier run
    are replaced, never extended."""
    by_video: dict[Path, list[dict[str, Any]]] = defaultdict(list)
    for question in outcome.questions:
        name = question.clip.removeprefix("clips/").rsplit(".", 1)[0].replace("/", "_")
        by_video[settings.folder / question.dataset / f"{name}.json"].append(
            their_item(question, name, outcome.last[question.id])
        )
    for path, items in by_video.items():
        write_json(path, items)
    write_json(settings.folder / "benchmark.json", dict(scores))


def their_item(question: Question, video: str, item: Item) -> dict[str, Any]:
    """One answer with the fields of Cosmos-Reason1's result files."""
    answer = protocol_answer(item["response"], question.prompt, question.answer)
    return {
        "datasource": question.dataset,
        "video_id": video,
        "prompt": question.prompt,
        "correct_answer": question.answer,
        "reasoning": reasoning_of(item["response"]),
        "answer": answer,
        "full_response": item["response"] or "",
        "is_correct": protocol_correct(answer, question.answer),
    }


def as_text(scores: Mapping[str, Any]) -> str:
    """Format a line for each subset, then the published scores of this model."""
    lines = [f"{'subset':<12}{'n':>5}   {'asked once':<24}{'with retries':<24}{'again':>6}{'empty':>7}{'failed':>8}"]
    for name, row in scores["subsets"].items():
        counts = f"{row['asked_again']:>6}{row['with_retries']['empty']:>7}{row['failed']:>8}"
        lines.append(
            f"{name:<12}{row['n']:>5}   {_share(row['one_shot']):<24}{_share(row['with_retries']):<24}{counts}"
        )
    for row in scores["published"]:
        figures = ", ".join(f"{name} {row['scores'][name]:g}" for name in scores["subsets"] if name in row["scores"])
        lines.append(f"published for {row['model']}: {figures} ({row['source']})")
    return "\n".join([*lines, f"{scores['results']}"])


def _share(row: Mapping[str, Any]) -> str:
    if row["accuracy"] is None:
        return "-"
    low, high = row["accuracy_ci95"]
    return f"{row['accuracy']:.1%} ({low:.1%} to {high:.1%})"
