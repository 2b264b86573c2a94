"""How a study stands, from its journal alone: quick with a thousand trials, and in nobody's way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from vidqa.contract.cli import Result, command
from vidqa.contract.problem import Problem, ProblemError
from vidqa.jobs import records, watch
from vidqa.automl import requests
from vidqa.automl.history import BASELINE, Entry, History, ranked
from vidqa.automl.journal import controller_of, read
from vidqa.automl.moves import Goal
from vidqa.automl.study_problems import STUDY_MISSING, STUDY_NOT_DONE

SHOWN = 10  # of the best trials, on a terminal


def status(folder: Path) -> Result:
    """Raises STUDY_MISSING, STUDY_JOURNAL."""
    found = read(folder)
    if not found.events:
        planned = (folder / "study.toml").is_file()
        message = "it is planned, and not started" if planned else "it holds no study"
        advice = f"start it: {command('run_automl', 'start', '--study', folder)}" if planned else None
        raise STUDY_MISSING.error(folder, message, advice)
    history, controller = History(found.events), controller_of(folder)
    data = {"study": str(folder), "state": state_of(history, alive=controller is not None), **_facts(history)}
    data["controller"] = controller.as_dict() if controller else None
    data["requests"] = [each.verb for each in requests.pending(folder)]
    data["note"] = found.note
    data["running"] = [_running(history, entry) for entry in history.running]
    following = [command("run_automl", "report" if history.finished else "status", "--study", folder)]
    if not history.finished and controller is None:
        following.insert(0, command("run_automl", "start", "--study", folder))
    return Result(data, _text(data), _problems(history, folder), following, exit_code=0)


def state_of(history: History, *, alive: bool) -> str:
    """searching, finishing (re-runs, tests), finished, stopped, or interrupted: nobody works on it."""
    if history.finished:
        return "finished"
    if not alive:
        return "stopped" if history.stopped else "interrupted"
    return "searching" if history.searched is None else "finishing"


def goal_of(history: History) -> Goal:
    assert history.created
    first = history.created["settings"]["goals"][0]
    return Goal(first["metric"], first["direction"])


def row_of(entry: Entry) -> dict[str, Any]:
    """A trial in --json."""
    reached = entry.measured[-1] if entry.measured else None
    return {
        "number": entry.number,
        "state": entry.state,
        "proposer": entry.proposer,
        "values": entry.values,
        "objectives": list(reached.objectives) if reached else [],
        "steps": reached.steps if reached else 0,
        "rung": entry.rung,
        "repairs": entry.repairs,
        "why": entry.why,
    }


def _facts(history: History) -> dict[str, Any]:
    assert history.created
    settings, goal = history.created["settings"], goal_of(history)
    best = ranked(history, goal)
    return {
        "algorithm": settings["algorithm"],
        "goal": {"metric": goal.metric, "direction": goal.direction},
        "max_trials": history.max_trials,
        "trials": dict(Counter(entry.state for entry in history.trials)),
        "count": len(history.trials),
        "enqueued": len(history.queue),
        "best": row_of(best[0]) if best else None,
        "top": [row_of(entry) for entry in best[:SHOWN]],
        "baseline": history.scores.get(BASELINE, {}).get(goal.metric),
        "hours": round(history.elapsed_s / 3600, 4),
        "hours_left": _hours_left(history),
        "job_hours": round(history.seconds / 3600, 4),
        "gpu_hours": round(history.gpu_seconds / 3600, 4),
        "searched": history.searched,
        "stopped": history.stopped,
        "skipped": history.skipped,
        "winner": history.winner,
        "last_failures": history.failures,
    }


def _hours_left(history: History) -> float | None:
    """Of the search, if the trials to come take as long as those that have ended; None where that is not known. Re-runs
    and tests come after it."""
    ended = sum(entry.state not in ("running", "paused") for entry in history.trials)
    if history.searched is not None or not ended:
        return None
    return round(history.elapsed_s / 3600 / ended * max(0, history.max_trials - ended), 4)


def _running(history: History, entry: Entry) -> dict[str, Any]:
    """A running trial and its job, as its record says; nobody's records are changed."""
    names = [name for name in history.work if name.startswith(f"trial-{entry.number}/rung-{entry.rung}/")]
    row: dict[str, Any] = {"number": entry.number, "rung": entry.rung, "values": entry.values}
    if not names:
        return row
    work = history.work[names[-1]]
    row |= {"work": names[-1], "job_id": work.job_id, "retries": work.retries}
    try:
        record = records.read(work.job_id)
    except ProblemError:
        return row
    said = watch.progress(record)
    return row | {"state": str(record.state), "step": said.get("step"), "total_steps": said.get("total_steps")}


def _problems(history: History, folder: Path) -> list[Problem]:
    if history.stopped and not history.finished:
        return [STUDY_NOT_DONE.at(folder, f"it was stopped: {history.stopped}", severity="warning")]
    return []


def _text(data: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in data["trials"].items()) or "none yet"
    goal = data["goal"]
    lines = [
        f"{data['state']}: {data['count']} of {data['max_trials']} trials by {data['algorithm']}: {counts}",
        f"{goal['direction']} {goal['metric']}; {data['hours']:.2f} h, {data['gpu_hours']:.2f} GPU hours",
    ]
    if data["hours_left"] is not None:
        lines.append(f"about {data['hours_left']:.2f} h of the search are left")
    if data["baseline"] is not None:
        lines.append(f"the model before training: {data['baseline']:.5g}")
    lines += [shown(row) for row in data["top"]]
    for row in data["running"]:
        steps = (
            f"step {row.get('step')} of {row.get('total_steps')}" if row.get("total_steps") else row.get("state", "")
        )
        lines.append(
            f"  running   {row['number']:4}  {row.get('work', 'not yet a job')}  {row.get('job_id', '')} {steps}"
        )
    lines += [f"{what} were left out: {why}" for what, why in data["skipped"].items()]
    for name in ("searched", "stopped"):
        if data[name]:
            lines.append(f"{name}: {data[name]}")
    return "\n".join([*lines, *([data["note"]] if data["note"] else [])])


def shown(row: dict[str, Any]) -> str:
    """A trial as one line."""
    values = ", ".join(
        f"{name.rpartition('.')[2]}={value:.4g}" if isinstance(value, float) else f"{name.rpartition('.')[2]}={value}"
        for name, value in row["values"].items()
    )
    reached = ", ".join(f"{value:.5g}" for value in row["objectives"])
    return f"  {row['state']:9} {row['number']:4}  {reached:10}  {row['proposer']:10}  {values}"
