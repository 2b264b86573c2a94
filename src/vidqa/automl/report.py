"""The report of a study: best_spec.toml, best.json, report.html, and the study as optuna-dashboard opens it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.contract import files
from vidqa.contract.cli import Result, command
from vidqa.jobs.launch import unchecked
from vidqa.pages.chart import Drawn, Line, Point, draw
from vidqa.pages.page import page
from vidqa.spec.keys import with_values
from vidqa.automl import summary
from vidqa.automl.after import TESTS, After, test_of
from vidqa.automl.history import Entry, History, better, ranked
from vidqa.automl.importance import coordinates, importance
from vidqa.automl.places import Places
from vidqa.automl.retention import removable
from vidqa.automl.status import row_of
from vidqa.automl.study import Study, history_of, open_study
from vidqa.automl.study_problems import STUDY_MISSING, STUDY_NOT_DONE
from vidqa.automl.trials import Trials
from vidqa.automl.work import Jobs

BEST_SPEC, BEST, PAGE, OPTUNA = "best_spec.toml", "best.json", "report.html", "optuna.log"
WIDTH, HEIGHT, EDGE = 1120, 300, 90  # of the parallel coordinates; a name of 25 letters has room at an edge
SLICE_WIDTH, SLICE_HEIGHT, SLICE_EDGE = 270, 170, 24  # of what trials reached by one parameter


def report(folder: Path) -> Result:
    """Write the report of what there is so far. Raises STUDY_MISSING, STUDY_JOURNAL, STUDY_CHANGED."""
    study = open_study(folder)
    history, note = history_of(folder)
    study.fits(history)
    after = After(study, Trials(study, Jobs(history, _never, study.settings.limits, unchecked, Places("", 0))))
    best = history.trials[history.winner] if history.winner is not None else after.winner()
    if best is None:
        raise STUDY_MISSING.error(
            folder, "no trial was measured yet", "wait, or look at its failures: run_automl.py status"
        )
    data = _facts(study, history, after)
    data |= {"winner": best.number, "best_values": best.values, "note": note}
    changes = {**study.space.fixed, **study.space.within(best.values)}
    files.write_text(folder / BEST_SPEC, spec.dump(with_values(study.base, changes)))
    run = next(map(str, after.runs(best).values()), None)
    files.write_json(folder / BEST, {**row_of(best), "train_run": run, "metrics": best.metrics, "table": data["table"]})
    files.write_text(folder / PAGE, _page(study, history, data))
    written = [BEST_SPEC, BEST, PAGE]
    if find_spec("optuna"):
        from vidqa.automl.optuna_export import export

        export(study, history, folder / OPTUNA)
        written.append(OPTUNA)
    data["files"] = [str(folder / name) for name in written]
    unfinished = STUDY_NOT_DONE.at(folder, "the table is of what there is so far", severity="warning")
    problems = [] if history.finished else [unfinished]
    following = [command("preflight", "--spec", folder / BEST_SPEC, "--platform", study.settings.platform)]
    return Result(data, _text(data), problems, following)


def _never(event: str, **fields: Any) -> dict[str, Any]:
    raise AssertionError("a report writes nothing into the journal")


def _facts(study: Study, history: History, after: After) -> dict[str, Any]:
    return {
        "algorithm": study.settings.algorithm,
        "goal": {"metric": study.goal.metric, "direction": study.goal.direction},
        "trials": len(history.trials),
        "hours": round(history.elapsed_s / 3600, 4),
        "gpu_hours": round(history.gpu_seconds / 3600, 4),
        "table": summary.table_of(study, history, after),
        "comparison": summary.comparisons(history),
        "bias": summary.bias_of(study, history, after),
        "importance": importance(study.space, history.completed),
        "skipped": history.skipped,
        "failed_re_runs": summary.failed_reruns(history),
        "removable": [str(path) for path in removable(study, history)],
    }


def _page(study: Study, history: History, data: dict[str, Any]) -> str:
    rows = [row_of(entry) for entry in ranked(history, study.goal)]
    others = [row_of(entry) for entry in history.trials if not entry.measured]
    return page(
        "automl/report.html.j2",
        title=f"Search by {data['algorithm']}: {study.goal.direction} {study.goal.metric}",
        filters={"reached": _reached},
        data=data,
        rows=rows + others,
        names=[each.name for each in study.space.parameters],
        history=_history(study, history),
        parallel=_parallel(study, history),
        parameters=_parameters(study, history),
        slices=_slices(history),
    )


def _history(study: Study, history: History) -> Drawn | None:
    points: list[Point] = []
    best: list[Point] = []
    for entry in history.completed:
        value = entry.measured[-1].objectives[0]
        points.append((float(entry.number), value))
        leads = not best or better(study.goal, value, than=best[-1][1])
        best.append((float(len(best)), value if leads else best[-1][1]))
    return draw(
        f"{study.goal.metric} of each trial, and the best so far",
        [Line("trial", sorted(points), "two", dots=True), Line("best so far", best)],
        note="By the number of the trial; the line by the order in which they ended.",
    )


def _parallel(study: Study, history: History) -> dict[str, Any]:
    """The lines of the parallel coordinates, the best trials last and darkest; the last axis is the rank."""
    axes = [each.name.rpartition(".")[2] for each in study.space.parameters] + ["rank"]
    step = (WIDTH - 2 * EDGE) / max(1, len(axes) - 1)
    entries, lines = list(reversed(ranked(history, study.goal))), []
    for place, entry in enumerate(entries):
        share = (place + 1) / len(entries)
        known = [*coordinates(study.space, entry), share]
        points = [
            f"{EDGE + at * step:.1f},{HEIGHT - 30 - unit * (HEIGHT - 60):.1f}"
            for at, unit in enumerate(known)
            if unit is not None
        ]
        lines.append(
            {"points": " ".join(points), "opacity": f"{0.08 + 0.92 * share**3:.2f}", "name": f"trial {entry.number}"}
        )
    return {
        "axes": [{"name": name, "x": round(EDGE + at * step, 1)} for at, name in enumerate(axes)],
        "lines": lines,
        "width": WIDTH,
        "height": HEIGHT,
    }


def _parameters(study: Study, history: History) -> list[dict[str, Any]]:
    """For each parameter what trials reached by their places in its range, the best on top; of those that went to their
    last rung, since others do not compare."""
    sign = 1 if study.goal.direction == "maximize" else -1
    reached = {entry.number: sign * entry.measured[-1].objectives[0] for entry in history.completed}
    low, high = min(reached.values(), default=0.0), max(reached.values(), default=0.0)
    found = []
    for at, each in enumerate(study.space.parameters):
        dots = []
        for entry in history.completed:
            unit = coordinates(study.space, entry)[at]
            if unit is None:
                continue
            up = (reached[entry.number] - low) / (high - low) if high > low else 0.5
            text = f"trial {entry.number}: {each.name} = {entry.values[each.name]}, {entry.objective:.5g}"
            x = SLICE_EDGE + unit * (SLICE_WIDTH - 2 * SLICE_EDGE)
            y = SLICE_HEIGHT - SLICE_EDGE - up * (SLICE_HEIGHT - 2 * SLICE_EDGE)
            dots.append({"x": f"{x:.1f}", "y": f"{y:.1f}", "text": text, "best": entry.number == history.winner})
        name, values = each.name.rpartition(".")[2], ", ".join(map(str, each.options)) or each.words()
        found.append({"name": name, "range": values, "dots": dots, "width": SLICE_WIDTH, "height": SLICE_HEIGHT})
    return [each for each in found if each["dots"]]


def _slices(history: History) -> list[dict[str, Any]]:
    """Accuracy by kind of question on the test set: of the untrained model, and of the first runs of template and
    winner."""
    tests = {"baseline": f"{TESTS}/baseline"}
    for who, entry in (("template", history.template), ("winner", _winner(history))):
        tests |= {who: test_of(entry)} if entry else {}
    found: dict[str, dict[str, Any]] = {}
    for who, test in tests.items():
        names = summary.tests_of(history, test)
        kinds = history.scores[names[0]].get("by_kind", {}) if names else {}
        for kind, row in kinds.items():
            found.setdefault(kind, {"kind": kind, "n": row.get("n")})[who] = row.get("accuracy")
    return list(found.values())


def _winner(history: History) -> Entry | None:
    return None if history.winner is None else history.trials[history.winner]


def _reached(values: list[float]) -> str:
    return ", ".join(f"{value:.5g}" for value in values)


def _text(data: dict[str, Any]) -> str:
    lines = [f"winner: trial {data['winner']}, {data['best_values']}", ""]
    lines.append(f"{'':24}{'in the search':>14}  {'re-runs':26}  test")
    for row in data["table"]:
        searched = "-" if row["searched"] is None else f"{row['searched']:.5g}"
        lines.append(f"{row['who'][:23]:24}{searched:>14}  {_reached(row['re_runs'])[:26]:26}  {_reached(row['test'])}")
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
