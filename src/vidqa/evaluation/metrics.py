"""Scores of an evaluation: accuracy with intervals, tables per kind, confusion matrices, and text metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from vidqa.core._optional import require
from vidqa.core.files import read_object
from vidqa.core.problem import Problem, ProblemError
from vidqa.evaluation.accuracy import (
    METHOD,
    accuracy_interval,
    headline,
    majority,
    one_answer,
    one_answer_problems,
    video_clusters,
)
from vidqa.evaluation.answers import DIRECTION_TASK, RULES, STATUSES, answer_text, parse_expected
from vidqa.evaluation.problems import METRIC_OTHER_KIND, METRIC_UNAVAILABLE
from vidqa.evaluation.results import FILE, Item, groups, judged, read_results
from vidqa.evaluation.text import rouge_l, token_f1

SCHEMA = "vidqa.metrics.v1"
# Takes answers and expected answers; returns one value per pair for each score name.
Measure = Callable[[Sequence[str], Sequence[str]], Mapping[str, Sequence[float]]]
# Columns after the classes: a parsed answer that is not one of them, and three statuses without an answer.
FURTHER = ("other", "unparsed", "truncated", "empty")
MOST_CLASSES = 12
SHOWN = 40  # most kinds of questions in terminal output


def score(
    items: Sequence[Item],
    task_type: str = "",
    soft_f1_threshold: float = 0.8,
    text_metrics: Sequence[str] = ("bleu", "rouge"),
    measures: Mapping[str, Measure] = MappingProxyType({}),
) -> dict[str, Any]:
    """The content of metrics.json: JSON-serialisable and deterministic. `measures` compute those of `text_metrics` that
    need a second model, by the metric's name.

    Ratios are 0..1 and null if their denominator is 0; BLEU is 0..100. Unparsed, truncated and empty answers count in
    every denominator and never as a wrong class. Items without `parse_status` are judged first.
    """
    items = [item if "parse_status" in item and "answer_kind" in item else judged(item, task_type) for item in items]
    with_truth = [item for item in items if item["correct"] is not None]
    scores: dict[str, Any] = {
        "schema": SCHEMA,
        "answer_rules": RULES,
        "task_type": task_type,
        "n": len(items),
        "n_without_ground_truth": len(items) - len(with_truth),
        "n_videos": len(set(video_clusters(item["video_id"] for item in items))),
        **_accuracy(with_truth),
        "one_answer": one_answer(with_truth),
        "accuracy_of_parsed": _share([i for i in with_truth if i["parse_status"] == "parsed"], itemgetter("correct")),
        "soft_accuracy": _share(with_truth, lambda item: _soft(item, soft_f1_threshold)),
        "soft_f1_threshold": soft_f1_threshold,
        "parse_status": {status: _count(items, "parse_status", status) for status in STATUSES},
        "finish_reason": dict(sorted(Counter(item["finish_reason"] for item in items).items())),
        "by_kind": {kind: _kind_row(group) for kind, group in groups(with_truth, "kind")},
        "confusion": {
            kind: table for kind, group in groups(with_truth, "kind") if (table := confusion(group)) is not None
        },
    }
    by_answer = dict(groups(with_truth, "answer_kind"))
    if "yes_no" in by_answer:
        scores["yes_no"] = yes_no_table(by_answer["yes_no"])
    if task_type == DIRECTION_TASK:
        scores[DIRECTION_TASK] = confusion(by_answer.get("direction", []), ("left", "right", "straight"))
    if "text" in by_answer:
        scores["text"] = _text_table(by_answer["text"], soft_f1_threshold, text_metrics, measures)
    scores["headline"] = headline(scores)
    problems = [*one_answer_problems(scores["one_answer"]), *metric_problems(text_metrics, measures)]
    scores["problems"] = [problem.as_dict() for problem in problems]
    return scores


def read_scores(run_dir: Path) -> dict[str, Any]:
    """The content of an evaluation's metrics.json, {} without one. Scores by other answer rules are computed again by
    the present ones, except those of user functions and second models. Raises the problems of its results."""
    metrics = read_object(run_dir / "metrics.json")
    if metrics.get("answer_rules", RULES) == RULES:
        return metrics
    scores = score(read_results(run_dir / FILE), metrics.get("task_type", ""), metrics.get("soft_f1_threshold", 0.8))
    text = {**metrics.get("text", {}), **scores.get("text", {})}
    return {**metrics, **scores, **({"text": text} if text else {})}


def numbers_of(table: Mapping[str, Any], prefix: str = "", types: tuple[type, ...] = (int, float)) -> dict[str, Any]:
    """The numbers of metrics.json, or its values of other `types`, by dotted name: by_kind.door.accuracy."""
    numbers: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict) and prefix.count(".") < 2:
            numbers |= numbers_of(value, f"{prefix}{name}.", types)
        elif isinstance(value, types) and not isinstance(value, bool):
            numbers[f"{prefix}{name}"] = value
    return numbers


def score_text(metrics: dict[str, Any]) -> str:
    """The headline, and a line for each kind of question."""
    lines = [
        f"  {kind[:24] or '(none)':24} {row['n']:6}  {100 * row['accuracy']:6.1f} %"
        for kind, row in metrics["by_kind"].items()
    ]
    return "\n".join([metrics["headline"], *(lines[:SHOWN] if len(lines) > 1 else [])])


def task_problems(where: str, task_type: str, expected: Sequence[tuple[str, str]]) -> list[Problem]:
    """A warning if the task of directions is selected for answers of another kind; `expected` has their questions."""
    if task_type != DIRECTION_TASK:
        return []
    others = [gt for gt, question in expected if parse_expected(gt, question, task_type).kind != "direction"]
    if not others:
        return []
    message = f"{len(others)} of {len(expected)} expected answers name no direction, such as {others[0][:40]!r}"
    return [METRIC_OTHER_KIND.at(where, message, severity="warning")]


def metric_problems(names: Sequence[str], measures: Collection[str] = ()) -> list[Problem]:
    """A warning for each metric that cannot be computed. `measures` are those whose second model is available."""
    problems = []
    for name in names:
        if name in measures:
            continue
        if name in ("bertscore", "similarity"):
            message = f"{name} needs a second model, but metrics.{name}_model is not a folder; it is not computed"
            remedy = f"set metrics.{name}_model to the path of a model's folder, or leave {name} out"
            problems.append(METRIC_UNAVAILABLE.at("metrics.names", message, remedy, severity="warning"))
        elif name == "bleu" and _bleu_library() is None:
            message = "bleu needs the package sacrebleu, which is not installed"
            problems.append(METRIC_UNAVAILABLE.at("metrics.names", message, severity="warning"))
    return problems


def yes_no_table(items: Sequence[Item]) -> dict[str, Any]:
    """Binary metrics with "yes" as the positive class; no answer lowers recall and accuracy, not precision."""
    pairs = Counter((item["parsed_gt"], item["parsed_response"] or "") for item in items)
    tp, fn, fp, tn = (pairs[gt, predicted] for gt in ("yes", "no") for predicted in ("yes", "no"))
    yes, no = _count(items, "parsed_gt", "yes"), _count(items, "parsed_gt", "no")
    scores, specificity = _class_scores(tp, tp + fp, yes), _ratio(tn, no)
    return {
        "n": len(items),
        "tp": tp,
        "fp": fp,
        "tn": tn,
        "fn": fn,
        "unanswered_yes": yes - tp - fn,
        "unanswered_no": no - tn - fp,
        "accuracy": _ratio(tp + tn, len(items)),
        "balanced_accuracy": _mean([scores["recall"], specificity]),
        **scores,
        "specificity": specificity,
    }


def confusion(items: Sequence[Item], classes: Sequence[str] | None = None) -> dict[str, Any] | None:
    """The confusion matrix: rows are expected classes; columns the same and "other", "unparsed", "truncated", "empty".

    None if the answers are not classes: fewer than 2 or more than MOST_CLASSES different expected answers, or fewer
    than two samples per class.
    """
    if classes is None:
        classes = sorted({item["parsed_gt"] for item in items})
        if not 2 <= len(classes) <= MOST_CLASSES or len(items) < 2 * len(classes):
            return None
    # By position: an expected answer may be equal to the name of a further column ("empty", of a shelf).
    columns, numbers = (*classes, *FURTHER), range(len(classes))
    cells = Counter((item["parsed_gt"], _column(item, classes)) for item in items)
    matrix = [[cells[row, number] for number in range(len(columns))] for row in classes]
    hits, predicted = [matrix[at][at] for at in numbers], [sum(row[at] for row in matrix) for at in numbers]
    per_class = {
        name: {"n": sum(matrix[at]), **_class_scores(hits[at], predicted[at], sum(matrix[at]))}
        for at, name in enumerate(classes)
    }
    return {
        "n": len(items),
        "classes": list(classes),
        "columns": list(columns),
        "matrix": matrix,
        "per_class": per_class,
        "accuracy": _ratio(sum(hits), len(items)),
        "balanced_accuracy": _mean([row["recall"] for row in per_class.values()]),
        "macro_f1": _mean([row["f1"] for row in per_class.values()]),
    }


def _column(item: Item, classes: Sequence[str]) -> int:
    if item["parse_status"] != "parsed":
        return len(classes) + FURTHER.index(item["parse_status"])
    return classes.index(item["parsed_response"]) if item["parsed_response"] in classes else len(classes)


def _text_table(
    items: Sequence[Item], threshold: float, metrics: Sequence[str], measures: Mapping[str, Measure]
) -> dict[str, Any]:
    """Metrics of free-text answers; responses and ground truths are preprocessed alike (without thinking and tags).
    Exact match and token F1 are on normalised text, BLEU and ROUGE-L on the original wording."""
    predicted = [_predicted_text(item) for item in items]
    truth = [answer_text(item["gt"]) for item in items]
    table: dict[str, Any] = {
        "n": len(items),
        "exact_match": _share(items, itemgetter("correct")),
        "soft_accuracy": _share(items, lambda item: _soft(item, threshold)),
        "token_f1": round(fmean(map(token_f1, predicted, truth)), 6),
    }
    if "rouge" in metrics:
        table["rouge_l"] = round(fmean(map(rouge_l, predicted, truth)), 6)
    if "bleu" in metrics and (library := _bleu_library()) is not None:
        bleu = library.BLEU(effective_order=True)
        table["bleu"] = round(bleu.corpus_score(predicted, [truth]).score, 4)
        table["bleu_signature"] = str(bleu.get_signature())
    for measure in measures.values():
        table |= {name: round(fmean(values), 6) for name, values in measure(predicted, truth).items()}
    return table


def _bleu_library() -> Any:
    try:
        return require("sacrebleu", "metrics")
    except ProblemError:
        return None


def _predicted_text(item: Item) -> str:
    """The answer of a response; empty unless it was parsed, so that a truncated answer scores nothing."""
    return answer_text(item["response"]) if item["parse_status"] == "parsed" else ""


def _soft(item: Item, threshold: float) -> bool:
    if item["answer_kind"] != "text" or item["correct"]:
        return bool(item["correct"])
    return token_f1(_predicted_text(item), answer_text(item["gt"])) >= threshold


def _kind_row(items: Sequence[Item]) -> dict[str, Any]:
    statuses = {status: _count(items, "parse_status", status) for status in STATUSES}
    return {"n": len(items), **_accuracy(items), **statuses}


def _accuracy(items: Sequence[Item]) -> dict[str, Any]:
    """Accuracy with its interval by video (a sample without video is its own) and the majority-class baseline."""
    correct = [bool(item["correct"]) for item in items]
    interval = accuracy_interval(correct, [item["video_id"] for item in items])
    return {
        "accuracy": _ratio(sum(correct), len(correct)),
        "accuracy_ci95": [interval.low, interval.high] if interval else None,
        "ci_method": METHOD if interval else "none",
        "n_effective": interval.n_effective if interval else 0.0,
        "correct": sum(correct),
        **majority(items),
    }


def _count(items: Sequence[Item], name: str, value: str) -> int:
    return sum(item[name] == value for item in items)


def _share(items: Sequence[Item], holds: Callable[[Item], bool]) -> float | None:
    return _ratio(sum(map(holds, items)), len(items))


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _class_scores(hits: int, predicted: int, actual: int) -> dict[str, float | None]:
    return {
        "precision": _ratio(hits, predicted),
        "recall": _ratio(hits, actual),
        "f1": _ratio(2 * hits, predicted + actual),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None without any."""
    present = [value for value in values if value is not None]
    return round(fmean(present), 6) if present else None
