"""The results of a study: a table with intervals of the untrained model, the template and the best trials; the winner
beside the template on the test set; the selection bias; the importance of each parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from vidqa.automl.decisions import Trial
from vidqa.automl.finals import TESTS, Finals, test_of
from vidqa.automl.history import BASELINE, History
from vidqa.automl.parameters import Parameter
from vidqa.automl.space import Space
from vidqa.automl.study import Study
from vidqa.core.problem import ProblemError
from vidqa.evaluation.comparison import compare

Row = dict[str, Any]
PARTS = 3  # of a range of numbers, for the importance
FEWEST = 6  # trials; with less, every parameter looks important


def table_of(study: Study, history: History, finals: Finals) -> list[Row]:
    """A row for the baseline, the template, each of the best trials; the winner is marked."""

    def row(who: str, trial: Trial | None, searched: Any, ci95: Any, reruns: list[float], test: str) -> Row:
        return {
            "who": who,
            "trial": trial.number if trial else None,
            "searched": searched,
            "ci95": ci95 if study.goal.metric == "accuracy" else None,
            "re_runs": reruns,
            "mean": fmean(reruns) if reruns else None,
            "test": _tests(study, history, test),
        }

    top = history.ranked(study.goal)[: study.settings.finals.top]
    rows = []
    if score := history.scores.get(BASELINE):
        metric = score.get(study.goal.metric)
        rows.append(row("model before training", None, metric, score.get("accuracy_ci95"), [], f"{TESTS}/{BASELINE}"))
    for trial in [*(trial for trial in finals.candidates() if trial not in top), *top]:
        roles = {"template": trial is history.template, "winner": trial.number == history.winner}
        who = ", ".join(name for name, has_role in roles.items() if has_role) or f"trial {trial.number}"
        reruns, ci95 = finals.rerun_objectives(trial), trial.metrics.get("accuracy_ci95")
        rows.append(row(who, trial, trial.objective, ci95, reruns, test_of(trial)))
    return rows


def _tests(study: Study, history: History, prefix: str) -> list[float]:
    """The results of the test evaluations of the baseline or a trial, by seed."""
    metric = "accuracy" if study.settings.of_training(study.goal.metric) else study.goal.metric
    values = [history.scores[name].get(metric) for name in tests_of(history, prefix)]
    return [value for value in values if isinstance(value, int | float)]


def tests_of(history: History, prefix: str) -> list[str]:
    """The names of the test evaluations of the baseline or a trial: one, or one for each seed."""
    return sorted(name for name in history.scores if name == prefix or name.startswith(f"{prefix}/"))


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
        seed = name.rpartition("seed-")[2]
        try:
            whole = compare(Path(other["run_dir"]), Path(score["run_dir"])).whole
        except ProblemError as apart:
            rows.append({"seed": seed, "verdict": apart.problems[0].message})
            continue
        fields = ("n", "before", "after", "difference", "ci95", "p_value", "verdict")
        rows.append({"seed": seed, **{key: getattr(whole, key) for key in fields}})
    return rows


def slices(history: History, winner: Trial | None) -> list[Row]:
    """Accuracy by kind of question on the test set: of the untrained model, and of the first runs of template and
    winner."""
    tests = {"baseline": f"{TESTS}/{BASELINE}"}
    for who, trial in (("template", history.template), ("winner", winner)):
        tests |= {who: test_of(trial)} if trial else {}
    rows: dict[str, Row] = {}
    for who, test in tests.items():
        names = tests_of(history, test)
        for kind, row in (history.scores[names[0]].get("by_kind", {}) if names else {}).items():
            rows.setdefault(kind, {"kind": kind, "n": row.get("n")})[who] = row.get("accuracy")
    return list(rows.values())


def bias_of(study: Study, history: History, finals: Finals) -> str:
    """How much of the best trial's lead was chance, in words."""
    best = history.ranked(study.goal)
    if not best or best[0].objective is None:
        return "No trial was measured."
    reruns = finals.rerun_objectives(best[0])
    text = f"Trial {best[0].number} was the best of {len(history.completed)} with {best[0].objective:.5g}. "
    text += "The best of many is partly best by chance, so this number is too good. "
    if len(tested := {name.split("/")[1] for name in history.scores if name.startswith(f"{TESTS}/trial-")}) > 2:
        text += f"The test set was looked at for {len(tested)} trials, since the study was made longer. "
    if not reruns:
        return text + "It was not trained again: how much of it is chance is not known."
    change = f"{fmean(reruns):.5g} on average ({min(reruns):.5g} to {max(reruns):.5g})"
    seeds = "one new seed" if len(reruns) == 1 else f"{len(reruns)} new seeds"
    return text + f"Trained again with {seeds} it reached {change}; this is the number to expect."


def failed_reruns(history: History) -> list[str]:
    return [f"{name}: {score['failed']}" for name, score in history.scores.items() if "failed" in score]


def importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """For each parameter the share 0..1 of the ranks' variance between the parts of its range, corrected for chance
    (omega squared). Ranks, since one diverged trial would outweigh all others. Empty for few trials.

    optuna's evaluators need scikit-learn, or compare the best tenth, which is one trial of most studies; and they leave
    out parameters with a condition.
    """
    if len(trials) < FEWEST:
        return {}
    order = sorted(trials, key=lambda trial: trial.objective or 0.0)
    ranks = {trial.number: float(place) for place, trial in enumerate(order)}
    shares = {parameter.name: _share(parameter, trials, ranks) for parameter in space.parameters}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _share(parameter: Parameter, trials: Sequence[Trial], ranks: dict[int, float]) -> float:
    from scipy.stats import f_oneway

    groups: dict[Any, list[float]] = defaultdict(list)
    for trial in trials:
        groups[_part(parameter, trial)].append(ranks[trial.number])
    if not 1 < len(groups) < len(ranks):
        return 0.0
    excess = (len(groups) - 1) * (f_oneway(*groups.values()).statistic - 1)
    return round(max(0.0, excess / (excess + len(ranks))), 4)


def _part(parameter: Parameter, trial: Trial) -> Any:
    """The part of the range that a trial is in; a parameter that does not apply there is a part of its own."""
    if parameter.name not in trial.values:
        return None
    unit = parameter.unit(trial.values[parameter.name])
    return round(unit, 6) if parameter.options else min(int(unit * PARTS), PARTS - 1)
