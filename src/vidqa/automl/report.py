"""The report of a study: best_spec.toml, best.json, report.html, and the study for optuna-dashboard.

It compares the base model, the template and the best trials, with confidence intervals; tests the winner against the
template on the test set; and shows the selection bias and the importance of each parameter. The charts are our own SVG,
since plotly, which optuna.visualization needs, makes a page of four megabytes. optuna.log is an export: changes in it
have no effect.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from vidqa import spec
from vidqa.automl.algorithms._base import EXTRA
from vidqa.automl.decisions import State, Trial
from vidqa.automl.finals import TESTS, FinalRuns, removable, test_of
from vidqa.automl.history import BASELINE, History
from vidqa.automl.parameters import Parameter
from vidqa.automl.problems import STUDY_MISSING, STUDY_NOT_DONE
from vidqa.automl.space import Space
from vidqa.automl.status import status, trial_row
from vidqa.automl.study import Study, open_with_journal
from vidqa.core import files
from vidqa.core._optional import require
from vidqa.core.cli import Result, command
from vidqa.core.pages.chart import Drawn, Line, draw
from vidqa.core.pages.page import page
from vidqa.core.problem import ProblemError
from vidqa.evaluation.comparison import compare
from vidqa.evaluation.pages import points
from vidqa.spec.keys import with_values

BEST_SPEC, BEST_TRIAL, REPORT_PAGE, OPTUNA_JOURNAL = "best_spec.toml", "best.json", "report.html", "optuna.log"
AXIS_STEP = 48  # pixels from one of the parallel coordinates to the next
OPTUNA_STATES: dict[State, str] = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}  # optuna's names
IMPORTANCE_BINS = 3  # bins of a numeric range
MIN_TRIALS = 6  # for the importance; with fewer, every parameter looks important
Row = dict[str, Any]


def report(folder: Path) -> Result:
    """Write the report of the results so far into the study's folder; the result has its tables. Raises STUDY_MISSING,
    JOURNAL_BROKEN, STUDY_CHANGED."""
    following, (study, journal) = status(folder).next[0], open_with_journal(folder)
    history = journal.history
    finals = FinalRuns(study, history)
    best = history.trials[history.winner] if history.winner is not None else finals.winner()
    if best is None:
        why = f"; the last failure: {history.failures[-1]}" if history.failures else ""
        advice = f"correct that, then: {command('run_automl', 'start', '--study', folder)}"
        advice = f"{advice} --trials {len(history.trials) + 1}" if history.finished else advice if why else following
        raise STUDY_MISSING.error(folder, f"no trial was measured{why}", advice)
    data = _facts(finals)
    data |= {"winner": best.number, "best_values": best.values, "note": journal.note}
    changes = {**study.space.fixed, **study.space.applicable_values(best.values)}
    files.write_text(folder / BEST_SPEC, spec.dump(with_values(study.base, changes)))
    run = next(map(str, finals.tested_runs(best).values()), None)
    facts = {"train_run": run, "metrics": best.metrics, "table": data["table"]}
    files.write_json(folder / BEST_TRIAL, {**trial_row(best), **facts})
    files.write_text(folder / REPORT_PAGE, _page(study, history, data))
    names = [BEST_SPEC, BEST_TRIAL, REPORT_PAGE]
    if find_spec("optuna"):
        export_optuna(study, history, folder / OPTUNA_JOURNAL)
        names.append(OPTUNA_JOURNAL)
    data["files"] = [str(folder / name) for name in names]
    unfinished = STUDY_NOT_DONE.at(folder, "the table has the results so far", following, severity="warning")
    problems = [] if history.finished else [unfinished]
    next_commands = [command("preflight", "--spec", folder / BEST_SPEC, "--platform", study.settings.platform)]
    return Result(data, _text(data), problems, next_commands)


def _facts(finals: FinalRuns) -> dict[str, Any]:
    study, history = finals.study, finals.history
    return {
        "algorithm": study.settings.algorithm,
        "goal": {"metric": study.goal.metric, "direction": study.goal.direction},
        "trials": len(history.trials),
        "hours": round(history.elapsed_s / 3600, 4),
        "gpu_hours": round(history.gpu_seconds / 3600, 4),
        "table": _table(finals),
        "comparison": _comparisons(history),
        "bias": _selection_bias(finals),
        "importance": _importance(study.space, history.completed),
        "skipped": history.skipped,
        "failed_re_runs": [f"{name}: {row['failed']}" for name, row in history.scores.items() if "failed" in row],
        "removable": [str(path) for path in removable(study, history)],
    }


def _page(study: Study, history: History, data: dict[str, Any]) -> str:
    ranked = history.ranked(study.goal)
    return page(
        "automl/report.html.j2",
        title=f"Search by {data['algorithm']}: {study.goal.direction} {study.goal.metric}",
        filters={"numbers": _numbers, "points": points},
        data=data,
        rows=[trial_row(trial) for trial in [*ranked, *(trial for trial in history.trials if not trial.measured)]],
        names=[parameter.name for parameter in study.space.parameters],
        history=_history_chart(study, history),
        parallel=_parallel_coordinates(study, ranked),
        parameters=_parameter_charts(study, history),
        slices=_accuracy_by_kind(history, None if history.winner is None else history.trials[history.winner]),
    )


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.5g}" for value in values)


def _text(data: dict[str, Any]) -> str:
    heading = f"{'':24}{'in the search':>14}  {'re-runs':26}  test"
    best = ", ".join(f"{name}={value}" for name, value in data["best_values"].items())
    lines = [f"winner: trial {data['winner']}, {best}", "", heading]
    for row in data["table"]:
        searched = "-" if row["searched"] is None else f"{row['searched']:.5g}"
        lines.append(f"{row['who'][:23]:24}{searched:>14}  {_numbers(row['re_runs'])[:26]:26}  {_numbers(row['test'])}")
    for row in data["comparison"]:
        if "difference" in row:
            low, high = row["ci95"]
            change = f"{100 * row['difference']:+.1f} points (95 %: {100 * low:+.1f} to {100 * high:+.1f})"
            lines.append(f"test, seed {row['seed']}: {change}, {row['verdict']}")
    lines += ["", data["bias"]]
    lines += [f"importance: {name} {share:.2f}" for name, share in data["importance"].items()]
    lines += [f"{what} were left out: {why}" for what, why in data["skipped"].items()]
    lines += data["failed_re_runs"]
    return "\n".join([*lines, "", *(f"wrote {path}" for path in data["files"])])


# --- results ---------------------------------------------------------------------------------------------------------


def _table(finals: FinalRuns) -> list[Row]:
    """Rows of the main table: the baseline, the template and the best trials, with the winner marked."""
    study, history = finals.study, finals.history

    def row(who: str, trial: Trial | None, searched: Any, ci95: Any, reruns: list[float], test: str) -> Row:
        return {
            "who": who,
            "trial": trial.number if trial else None,
            "searched": searched,
            "ci95": ci95 if study.goal.metric == "accuracy" else None,
            "re_runs": reruns,
            "mean": fmean(reruns) if reruns else None,
            "test": [value for value in tested(test) if isinstance(value, int | float)],
        }

    def tested(test: str) -> list[Any]:
        metric = "accuracy" if study.settings.of_training(study.goal.metric) else study.goal.metric
        return [history.scores[name].get(metric) for name in _tests_of(history, test)]

    rows = []
    if score := history.scores.get(BASELINE):
        metric = score.get(study.goal.metric)
        rows.append(row("model before training", None, metric, score.get("accuracy_ci95"), [], f"{TESTS}/{BASELINE}"))
    top = history.ranked(study.goal)[: study.settings.finals.top]
    for trial in [*(trial for trial in finals.candidates() if trial not in top), *top]:
        roles = {"template": trial is history.template, "winner": trial.number == history.winner}
        who = ", ".join(name for name, has_role in roles.items() if has_role) or f"trial {trial.number}"
        reruns, ci95 = finals.rerun_objectives(trial), trial.metrics.get("accuracy_ci95")
        rows.append(row(who, trial, trial.objective, ci95, reruns, test_of(trial)))
    return rows


def _tests_of(history: History, prefix: str) -> list[str]:
    """The names in history.scores of the test evaluations of a trial or the baseline: one, or one per seed."""
    return sorted(name for name in history.scores if name == prefix or name.startswith(f"{prefix}/"))


def _comparisons(history: History) -> list[Row]:
    """The paired comparison of template and winner on the test set, for each seed."""
    rows: list[Row] = []
    if history.winner is None or history.template is None or history.template.number == history.winner:
        return rows
    winner, template = test_of(history.trials[history.winner]), test_of(history.template)
    for name in _tests_of(history, winner):
        score, other = history.scores[name], history.scores.get(name.replace(winner, template, 1))
        if other is None or "run_dir" not in {*score} & {*other}:
            continue
        seed = name.partition("seed-")[2] or "of the trial"
        try:
            whole = compare(Path(other["run_dir"]), Path(score["run_dir"])).whole
        except ProblemError as incomparable:
            rows.append({"seed": seed, "verdict": incomparable.problems[0].message})
            continue
        fields = ("n", "before", "after", "difference", "ci95", "p_value", "verdict")
        rows.append({"seed": seed, **{key: getattr(whole, key) for key in fields}})
    return rows


def _accuracy_by_kind(history: History, winner: Trial | None) -> list[Row]:
    """Accuracy by kind of question on the test set: of the base model, and of the first runs of template and winner."""
    tests = {"baseline": f"{TESTS}/{BASELINE}"}
    for who, trial in (("template", history.template), ("winner", winner)):
        tests |= {who: test_of(trial)} if trial else {}
    rows: dict[str, Row] = {}
    for who, test in tests.items():
        names = _tests_of(history, test)
        for kind, row in (history.scores[names[0]].get("by_kind", {}) if names else {}).items():
            rows.setdefault(kind, {"kind": kind, "n": row.get("n")})[who] = row.get("accuracy")
    return list(rows.values())


def _selection_bias(finals: FinalRuns) -> str:
    """Sentences on the selection bias: the best trial's result in the search, and that of its re-runs."""
    history = finals.history
    best = history.ranked(finals.study.goal)
    if not best:
        return "No trial was measured."
    reruns = finals.rerun_objectives(best[0])
    text = f"Trial {best[0].number} was the best of {len(history.completed)} with {best[0].objective:.5g}. "
    text += "The best of many trials is partly best by chance: this number is biased upwards. "
    if len(tested := {name.split("/")[1] for name in history.scores if name.startswith(f"{TESTS}/trial-")}) > 2:
        text += f"{len(tested)} trials were evaluated on the test set, because the study was extended. "
    if not reruns:
        return text + "It was not retrained: how much of it is chance is not known."
    change = f"{fmean(reruns):.5g} on average ({min(reruns):.5g} to {max(reruns):.5g})"
    seeds = "one new seed" if len(reruns) == 1 else f"{len(reruns)} new seeds"
    return text + f"Retrained with {seeds} it reached {change}; this is the number to expect."


# --- importance ------------------------------------------------------------------------------------------------------


def _importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """The importance 0..1 of each parameter: the share of variance that the bins of its range explain, corrected for
    chance (omega squared). The variance is that of the trials' ranks, since one diverged trial would outweigh all
    others. Empty with fewer than MIN_TRIALS.

    optuna's evaluators need scikit-learn, or compare the best tenth, which is one trial in most studies; and they leave
    out parameters with a condition.
    """
    if len(trials) < MIN_TRIALS:
        return {}
    order = sorted(trials, key=lambda trial: trial.objective or 0.0)
    ranks = {trial.number: float(rank) for rank, trial in enumerate(order)}
    shares = {parameter.name: _omega_squared(parameter, trials, ranks) for parameter in space.parameters}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _omega_squared(parameter: Parameter, trials: Sequence[Trial], ranks: dict[int, float]) -> float:
    from scipy.stats import f_oneway

    groups: dict[Any, list[float]] = defaultdict(list)
    for trial in trials:
        groups[_bin_of(parameter, trial)].append(ranks[trial.number])
    if not 1 < len(groups) < len(ranks):
        return 0.0
    excess = (len(groups) - 1) * (f_oneway(*groups.values()).statistic - 1)
    return round(max(0.0, excess / (excess + len(ranks))), 4)


def _bin_of(parameter: Parameter, trial: Trial) -> Any:
    """The bin of a trial's value in the parameter's range; None, also a bin, if the parameter does not apply."""
    if parameter.name not in trial.values:
        return None
    unit = parameter.unit(trial.values[parameter.name])
    return round(unit, 6) if parameter.options else min(int(unit * IMPORTANCE_BINS), IMPORTANCE_BINS - 1)


# --- pictures --------------------------------------------------------------------------------------------------------


def _history_chart(study: Study, history: History) -> Drawn | None:
    completed = sorted(history.completed, key=lambda trial: trial.number)
    numbers = [float(trial.number) for trial in completed]
    values = [trial.measured[-1].objectives[0] for trial in completed]
    best = accumulate(values, lambda *pair: min(pair, key=study.goal.loss))
    return draw(
        f"{study.goal.metric} of each trial, and the best so far",
        [
            Line("result", list(zip(numbers, values, strict=True)), "two", dots=True),
            Line("best so far", list(zip(numbers, best, strict=True))),
        ],
        x_name="trial",
    )


def _parallel_coordinates(study: Study, ranked: list[Trial]) -> dict[str, Any]:
    """Axes, one below another so that any number fits any width, and lines of the parallel-coordinates chart. The best
    trials come last and most opaque; the last axis is the rank, with the best at the right."""
    parameters = study.space.parameters
    lines = []
    for rank, trial in enumerate(reversed(ranked), 1):
        share = rank / len(ranked)
        values = [(at, p.unit(trial.values[p.name])) for at, p in enumerate(parameters) if p.name in trial.values]
        points = " ".join(f"{1000 * unit:.1f},{at * AXIS_STEP}" for at, unit in [*values, (len(parameters), share)])
        lines.append({"points": points, "opacity": f"{0.08 + 0.92 * share**3:.2f}", "name": f"trial {trial.number}"})
    axes = [*(parameter.short_name for parameter in parameters), "rank"]
    return {"axes": list(enumerate(axes)), "lines": lines, "step": AXIS_STEP}


def _parameter_charts(study: Study, history: History) -> list[dict[str, Any]]:
    """A chart of results by value for each parameter, the best on top. Only completed trials are comparable: a pruned
    one was trained for fewer steps."""
    results = {trial.number: -study.goal.loss(trial.measured[-1].objectives[0]) for trial in history.completed}
    low, high = min(results.values(), default=0.0), max(results.values(), default=0.0)
    charts = []
    for parameter in study.space.parameters:
        dots = []
        for trial in (trial for trial in history.completed if parameter.name in trial.values):
            value, number = trial.values[parameter.name], trial.number
            height = (results[number] - low) / (high - low) if high > low else 0.5
            text = f"trial {number}: {parameter.name} = {value}, {trial.objective:.5g}"
            place = {"x": f"{24 + 222 * parameter.unit(value):.1f}", "y": f"{146 - 122 * height:.1f}"}
            dots.append({**place, "text": text, "best": number == history.winner})
        values = ", ".join(map(str, parameter.options)) or parameter.values_text()
        charts.append({"name": parameter.short_name, "range": values, "dots": dots})
    return [chart for chart in charts if chart["dots"]]


# --- optuna-dashboard ------------------------------------------------------------------------------------------------


def export_optuna(study: Study, history: History, path: Path) -> None:
    """Write the ended trials as an optuna journal, for: optuna-dashboard FOLDER/optuna.log"""
    optuna, journal = require("optuna", EXTRA), require("optuna.storages.journal", EXTRA)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    files.remove(path, owner=study.folder)
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
    directions = [goal.direction for goal in study.settings.goals]
    exported = optuna.create_study(storage=storage, study_name=study.folder.name, directions=directions)
    exported.set_user_attr("goals", [goal.metric for goal in study.settings.goals])
    for trial in history.trials:
        if trial.state not in OPTUNA_STATES:
            continue
        parameters = [parameter for parameter in study.space.parameters if parameter.name in trial.values]
        values = {
            parameter.name: json.dumps(trial.values[parameter.name])
            if parameter.options
            else trial.values[parameter.name]
            for parameter in parameters
        }
        attributes = {name: getattr(trial, name) for name in ("number", "proposer", "why", "repairs")}
        exported.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[OPTUNA_STATES[trial.state]],
                values=trial.measured[-1].objectives if trial.state == "complete" else None,
                params=values,
                distributions={
                    parameter.name: _widened(parameter, trial.values[parameter.name]) for parameter in parameters
                },
                user_attrs=attributes,
                intermediate_values={result.steps: result.objectives[0] for result in trial.measured},
            )
        )


def _widened(parameter: Parameter, value: Any) -> Any:
    """The optuna distribution of a parameter, widened to contain `value`: the template's may be outside of the range,
    which optuna refuses."""
    distributions = require("optuna.distributions", EXTRA)
    if parameter.options:
        return distributions.CategoricalDistribution(tuple(dict.fromkeys(map(json.dumps, (*parameter.options, value)))))
    low, high = min(parameter.low, value), max(parameter.high, value)
    if isinstance(value, int) and parameter.kind == "int":
        return distributions.IntDistribution(low, high)
    return distributions.FloatDistribution(low, high, log=parameter.log and low > 0)
