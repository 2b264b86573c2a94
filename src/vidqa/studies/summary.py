"""What a study found, as a table with intervals: the untrained model, the template, the best trials, the winner."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from vidqa.contract.problem import ProblemError
from vidqa.evaluation.comparison import compare
from vidqa.studies.after import TESTS, After
from vidqa.studies.history import BASELINE, Entry, History, ranked
from vidqa.studies.study import Study

Row = dict[str, Any]


def table_of(study: Study, history: History, after: After) -> list[Row]:
    """A row for the baseline, the template, each of the best trials; the winner is named."""
    top = ranked(history, study.goal)[: study.settings.finals.top]
    template = [entry for entry in after.candidates() if entry not in top]
    rows = [_baseline(study, history)] if BASELINE in history.scores else []
    return rows + [_row(study, history, after, entry) for entry in [*template, *top]]


def _baseline(study: Study, history: History) -> Row:
    score = history.scores[BASELINE]
    return {
        "who": "model before training",
        "trial": None,
        "searched": score.get(study.goal.metric),
        "ci95": score.get("accuracy_ci95") if study.goal.metric == "accuracy" else None,
        "re_runs": [],
        "mean": None,
        "test": _tests(study, history, BASELINE),
    }


def _row(study: Study, history: History, after: After, entry: Entry) -> Row:
    again = after.reached_again(entry)
    names = [
        name
        for name, is_it in (("template", entry is history.template), ("winner", entry.number == history.winner))
        if is_it
    ]
    return {
        "who": ", ".join(names) or f"trial {entry.number}",
        "trial": entry.number,
        "searched": entry.objective,
        "ci95": entry.metrics.get("accuracy_ci95") if study.goal.metric == "accuracy" else None,
        "re_runs": again,
        "mean": fmean(again) if again else None,
        "test": _tests(study, history, "winner" if entry.number == history.winner else "template"),
    }


def _tests(study: Study, history: History, who: str) -> list[float]:
    """What the test evaluations of the baseline, the template or the winner reached, by seed."""
    metric = "accuracy" if study.settings.of_training(study.goal.metric) else study.goal.metric
    names = sorted(name for name in history.scores if name == f"{TESTS}/{who}" or name.startswith(f"{TESTS}/{who}/"))
    values = [history.scores[name].get(metric) for name in names]
    return [value for value in values if isinstance(value, int | float)]


def comparisons(history: History) -> list[Row]:
    """The winner beside the template on the test set, question by question, for each seed."""
    rows = []
    for name, score in sorted(history.scores.items()):
        other = history.scores.get(name.replace("/winner", "/template"))
        if not name.startswith(f"{TESTS}/winner") or other is None or "run_dir" not in {*score} & {*other}:
            continue
        try:
            found = compare(Path(other["run_dir"]), Path(score["run_dir"])).whole
        except ProblemError as apart:
            rows.append({"seed": name.rpartition("seed-")[2], "verdict": apart.problems[0].message})
            continue
        fields = ("n", "before", "after", "difference", "ci95", "p_value", "verdict")
        rows.append({"seed": name.rpartition("seed-")[2], **{key: getattr(found, key) for key in fields}})
    return rows


def bias_of(study: Study, history: History, after: After) -> str:
    """A word on how much of the best trial's lead was chance."""
    best = ranked(history, study.goal)
    if not best or best[0].objective is None:
        return "No trial was measured."
    count = len(history.completed)
    again = after.reached_again(best[0])
    said = f"Trial {best[0].number} was the best of {count} with {best[0].objective:.5g}. "
    said += "The best of many is partly best by chance, so this number is too good. "
    if not again:
        return said + "It was not trained again: how much of it is chance is not known."
    change = f"{fmean(again):.5g} on average ({min(again):.5g} to {max(again):.5g})"
    return said + f"Trained again with {len(again)} new seeds it reached {change}; this is the number to expect."


def failed_reruns(history: History) -> list[str]:
    return [f"{name}: {score['failed']}" for name, score in history.scores.items() if "failed" in score]
