"""What a study found, as a table with intervals: the untrained model, the template, the best trials, the winner."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from vidqa.contract.problem import ProblemError
from vidqa.evaluation.comparison import compare
from vidqa.automl.after import TESTS, After, test_of
from vidqa.automl.history import BASELINE, Entry, History, ranked
from vidqa.automl.study import Study

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
        "test": _tests(study, history, f"{TESTS}/{BASELINE}"),
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
        "test": _tests(study, history, test_of(entry)),
    }


def _tests(study: Study, history: History, of: str) -> list[float]:
    """What the test evaluations of the baseline or of a trial reached, by seed."""
    metric = "accuracy" if study.settings.of_training(study.goal.metric) else study.goal.metric
    values = [history.scores[name].get(metric) for name in tests_of(history, of)]
    return [value for value in values if isinstance(value, int | float)]


def tests_of(history: History, of: str) -> list[str]:
    """The names of the test evaluations that `of` has: one, or one for each seed."""
    return sorted(name for name in history.scores if name == of or name.startswith(f"{of}/"))


def comparisons(history: History) -> list[Row]:
    """The winner beside the template on the test set, question by question, for each seed."""
    rows: list[Row] = []
    if history.winner is None or history.template is None or history.template.number == history.winner:
        return rows
    winner, template = test_of(history.trials[history.winner]), test_of(history.template)
    for name in tests_of(history, winner):
        score, other = history.scores[name], history.scores.get(name.replace(winner, template, 1))
        if other is None or "run_dir" not in {*score} & {*other}:
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
    if len(tested := {name.split("/")[1] for name in history.scores if name.startswith(f"{TESTS}/trial-")}) > 2:
        said += f"The test set was looked at for {len(tested)} trials, since the study was made longer. "
    if not again:
        return said + "It was not trained again: how much of it is chance is not known."
    change = f"{fmean(again):.5g} on average ({min(again):.5g} to {max(again):.5g})"
    seeds = "one new seed" if len(again) == 1 else f"{len(again)} new seeds"
    return said + f"Trained again with {seeds} it reached {change}; this is the number to expect."


def failed_reruns(history: History) -> list[str]:
    return [f"{name}: {score['failed']}" for name, score in history.scores.items() if "failed" in score]
