"""The status of an AutoML study, as data for --json and as text. It is read from the study's journal alone, without a
lock, and is fast for a thousand trials."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from vidqa.automl.decisions import Goal, Trial, values_text
from vidqa.automl.history import BASELINE, History
from vidqa.automl.journal import StudyJournal, controller_of, pending_requests, read
from vidqa.automl.problems import STUDY_MISSING, STUDY_NOT_DONE
from vidqa.automl.settings import FILE
from vidqa.core.cli import Result, command
from vidqa.core.problem import ProblemError
from vidqa.jobs import records

TOP_TRIALS = 10  # best trials in a status


def status(folder: Path) -> Result:
    """State, counts, hours, best and running trials of the study in `folder`, and the next command. Raises
    STUDY_MISSING, JOURNAL_BROKEN."""
    journal = read_started(folder)
    history, controller = journal.history, controller_of(folder)
    data = {"study": str(folder), "state": _state(history, has_controller=controller is not None), **_totals(history)}
    data["controller"] = controller.as_dict() if controller else None
    data["requests"] = [request.verb for request in pending_requests(folder)]
    data["note"] = journal.note
    data["running"] = [_running_row(history, trial) for trial in history.running]
    next_commands = [command("run_automl", "report" if history.finished else "status", "--study", folder)]
    if not history.finished and controller is None:
        next_commands.insert(0, command("run_automl", "start", "--study", folder))
    stopped = STUDY_NOT_DONE.at(folder, f"it was stopped: {history.stopped}", severity="warning")
    problems = [stopped] if history.stopped and not history.finished else []
    return Result(data, _text(data), problems, next_commands, exit_code=0)


def read_started(folder: Path) -> StudyJournal:
    """Read the journal of a study. Raises STUDY_MISSING for a study that was planned but not started, or a folder
    without one, and JOURNAL_BROKEN for a damaged journal."""
    journal = read(folder)
    if not journal.log.events:
        planned = (folder / FILE).is_file()
        message = "it is planned but not started" if planned else "it contains no study"
        advice = f"start it: {command('run_automl', 'start', '--study', folder)}" if planned else None
        raise STUDY_MISSING.error(folder, message, advice)
    return journal


def _state(history: History, *, has_controller: bool) -> str:
    """The state in a word: searching; finishing: the search is over, re-runs and tests are not; finished; stopped: by a
    request or a problem; interrupted: its controller died."""
    if history.finished:
        return "finished"
    if not has_controller:
        return "stopped" if history.stopped else "interrupted"
    return "searching" if history.searched is None else "finishing"


def trial_row(trial: Trial) -> dict[str, Any]:
    """A trial in --json, with its last measurement."""
    last = trial.measured[-1] if trial.measured else None
    return {
        "number": trial.number,
        "state": trial.state,
        "proposer": trial.proposer,
        "values": trial.values,
        "objectives": list(last.objectives) if last else [],
        "steps": last.steps if last else 0,
        "rung": trial.rung,
        "repairs": trial.repairs,
        "why": trial.why,
    }


def _totals(history: History) -> dict[str, Any]:
    """The fields of --json for the study as a whole."""
    assert history.created
    settings = history.created["settings"]
    goal = Goal.model_validate(settings["goals"][0])
    best = history.ranked(goal)
    return {
        "algorithm": settings["algorithm"],
        "goal": {"metric": goal.metric, "direction": goal.direction},
        "max_trials": history.max_trials,
        "trials": dict(Counter(trial.state for trial in history.trials)),
        "count": len(history.trials),
        "enqueued": len(history.queue),
        "best": trial_row(best[0]) if best else None,
        "top": [trial_row(trial) for trial in best[:TOP_TRIALS]],
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
    """Expected hours of the rest of the search at the speed so far, without re-runs and tests. None before the first
    trial has ended, and after the search."""
    ended = sum(trial.state not in ("running", "paused") for trial in history.trials)
    if history.searched is not None or not ended:
        return None
    return round(history.elapsed_s / 3600 / ended * max(0, history.max_trials - ended), 4)


def _running_row(history: History, trial: Trial) -> dict[str, Any]:
    """A running trial with the progress of its job. The job's record is only read: the controller updates it."""
    names = [name for name in history.work if name.startswith(f"trial-{trial.number}/rung-{trial.rung}/")]
    row: dict[str, Any] = {"number": trial.number, "rung": trial.rung, "values": trial.values}
    if not names:
        return row
    work = history.work[names[-1]]
    row |= {"work": names[-1], "job_id": work.job_id, "retries": work.retries}
    try:
        record = records.read(work.job_id)
    except ProblemError:
        return row
    progress = record.run.read_status()
    return row | {"state": str(record.state), "step": progress.get("step"), "total_steps": progress.get("total_steps")}


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
    lines += [_trial_line(row) for row in data["top"]]
    for row in data["running"]:
        total, job = row.get("total_steps"), f"{row.get('work', 'not yet a job')}  {row.get('job_id', '')}"
        steps = f"step {row.get('step')} of {total}" if total else row.get("state", "")
        lines.append(f"  running   {row['number']:4}  {job} {steps}")
    lines += [f"{skipped} were left out: {why}" for skipped, why in data["skipped"].items()]
    lines += [f"the last failure: {why}" for why in data["last_failures"][-1:]]
    for name in ("searched", "stopped"):
        if data[name]:
            lines.append(f"{name}: {data[name]}")
    return "\n".join([*lines, *([data["note"]] if data["note"] else [])])


def _trial_line(row: dict[str, Any]) -> str:
    objectives = ", ".join(f"{value:.5g}" for value in row["objectives"])
    return f"  {row['state']:9} {row['number']:4}  {objectives:10}  {row['proposer']:10}  {values_text(row['values'])}"
