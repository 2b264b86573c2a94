"""The results of a run of the benchmark: scores by subset, without and with retries, and Cosmos-Reason1's own files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vidqa.benchmark.questions import Question
from vidqa.benchmark.running import Outcome, Settings
from vidqa.core.files import write_json
from vidqa.evaluation.cosmos_protocol import PROTOCOL, protocol_answer, protocol_correct, protocol_scores, reasoning_of
from vidqa.evaluation.metrics import score
from vidqa.evaluation.results import Item

SCHEMA = "vidqa.benchmark.v1"
ALL = "all"


@cache
def published() -> list[dict[str, Any]]:
    """Scores that others have published, in per cent by subset, each with its source."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def report(settings: Settings, outcome: Outcome) -> dict[str, Any]:
    """The content of benchmark.json. `one_shot` and `with_retries` count as the benchmark does, `own_rules` is the
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
    """benchmark.json, and SUBSET/VIDEO.json for every video, as Cosmos-Reason1 writes them. Files of an earlier run
    are replaced, never added to."""
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
    """One answer in the fields of Cosmos-Reason1's result files."""
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
    """A line for each subset, then the published scores of this model."""
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
