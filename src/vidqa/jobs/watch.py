"""Observation of jobs on any platform: wait for them, follow their logs, cancel them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vidqa.core import environment, files
from vidqa.core.cli import FILE_REFUSED, command, duration_text, note
from vidqa.core.problem import JOB_FAILED, Exit, Problem, ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.jobs import cost, failure, records
from vidqa.jobs.platforms import engine_process, platform
from vidqa.jobs.platforms._base import LAUNCHER_ENDED, NOT_STARTED, Job, Observed, State
from vidqa.jobs.platforms.processes import this_process
from vidqa.jobs.problems import JOB_NOT_DONE, JOB_NOT_FOUND, JOB_OUT_OF_MEMORY
from vidqa.jobs.records import JobRecord

MOST_LISTED = 50
TAIL_BYTES = 2**20


def observe(record: JobRecord) -> JobRecord:
    """The record with the state that the platform reports now; changes are stored."""
    if record.state.is_terminal:
        return record
    observed = platform(record.platform).status(record)
    if (observed.state, observed.message) == (record.state, record.message):
        return record
    if observed.state.is_terminal and not record.cancel_requested:
        stored = records.read(record.job_id)
        if stored.cancel_requested:  # requested after we read the record
            return _cancelled(stored)
    return _store(record, observed)


def _cancelled(record: JobRecord) -> JobRecord:
    """The record of a cancelled job that is over, even if its end was first stored as another state."""
    observed = platform(record.platform).status(record)
    state = State.CANCELED if observed.state in (State.STOPPED, State.ERROR) else observed.state
    return _store(record, replace(observed, state=state))


def _store(record: JobRecord, observed: Observed) -> JobRecord:
    why = observed.failure if observed.state == State.ERROR else None
    if observed.state == State.ERROR and not why:
        log = engine_process.tail(platform(record.platform).log, record)
        why = failure.classify(observed.exit_code, observed.message, record.run.read_problems(), log)
    changes = {**vars(observed), "failure": why}
    ended = replace(record, **changes)
    settle = partial(_settle_run_folder, ended) if ended.state.is_terminal else None
    if platform(record.platform).has_queue:
        changes["spans"] = cost.updated_spans(records.read(record.job_id), observed.state)
    return _update(record, first=settle, **changes)


def _update(record: JobRecord, *, first: Callable[[], None] | None = None, **changes: Any) -> JobRecord:
    """Result of `records.update`, also if the record cannot be written: on a full disk, too, a job can be observed and
    cancelled."""
    try:
        return records.update(record.job_id, first=first, **changes)
    except ProblemError as unwritten:
        if unwritten.problems[0].code != FILE_REFUSED.name:
            raise
        with suppress(OSError):  # the terminal's output may go to the same disk
            note(f"the record of job {record.job_id} is not up to date: {unwritten.problems[0].message}")
        return replace(record, **changes)


def _settle_run_folder(ended: JobRecord) -> None:
    """Write the end of the job into status.json and problems.json if a killed engine could not. A status STOPPED or
    ERROR by the engine itself is kept."""
    run = ended.run
    if not os.path.isdir(run.path):  # also False for an invalid path
        return
    try:
        own = (State.STOPPED, State.ERROR, ended.state)
        run.write_status(ended.state, message=ended.message, exit_code=ended.exit_code, unless=own)
        if ended.state == State.ERROR and not run.read_problems():
            run.write_problems([_problem_of(ended)])
    except OSError:
        return  # full disk, or a disk of the cluster: the record is enough


def find(job: str) -> JobRecord:
    """The record of a job, given by its id or its run folder, as observed now; of several jobs in one run folder the
    last launched. Raises JOB_NOT_FOUND, JOB_RECORD_BROKEN."""
    if not os.path.isdir(job) or job in records.names():
        return observe(records.read(job))
    folder, below = os.path.realpath(job), None
    for record in records.scan()[0]:  # the newest first
        run_dir = os.path.realpath(record.run_dir)
        if run_dir == folder:
            return observe(record)
        below = below or (record if os.path.dirname(run_dir) == folder else None)
    if below:
        remedy = f"give a job; the newest of them: {command('jobs', 'status', below.job_id)}"
        raise JOB_NOT_FOUND.error(job, "it is not a run folder, but contains run folders of jobs", remedy)
    if (name := os.path.basename(folder)) in records.names():
        return observe(records.read(name))
    if not (run := RunFolder(Path(folder)).read_run()):
        raise JOB_NOT_FOUND.error(job, f"it is not the run folder of a job in {environment.jobs_folder()}")
    remedy = "other scripts take the folder itself, such as scripts/build_spec.py with --parent-run"
    if moved := [record for record in records.scan()[0] if record.job_id in run.get("jobs", [])]:
        message = f"it was moved or copied from {moved[0].run_dir}, the run folder of job {moved[0].job_id}"
        raise JOB_NOT_FOUND.error(job, message, f"move it back to {moved[0].run_dir}; {remedy}")
    message = f"it is a run of another machine or state folder: no job of it is in {environment.jobs_folder()}"
    raise JOB_NOT_FOUND.error(job, message, remedy)


def later_job(record: JobRecord) -> JobRecord | None:
    """The newest job that continued the run of a job, as last stored; None without one."""
    newest = next((other for other in records.scan()[0] if other.run_dir == record.run_dir), record)
    return None if newest.job_id == record.job_id else newest


def latest() -> tuple[JobRecord, list[Problem]]:
    """The last launched job from the working folder, as observed now, and a warning for each unreadable record. Raises
    JOB_NOT_FOUND, which names the last job of another folder."""
    here, (newest_first, problems) = Path.cwd(), records.scan()
    of_here = next((record for record in newest_first if record.is_of(here)), None)
    if of_here:
        return observe(of_here), problems
    message, advice = f"no job was launched from {here}", "launch one: python scripts/launch.py --help"
    if newest_first:
        last = newest_first[0]
        message += f"; the last one, {last.job_id}, was from {last.folder or Path(last.spec).parent}"
        advice = f"show all jobs: {command('jobs', 'list')}"
    raise ProblemError([JOB_NOT_FOUND.at("latest", message, advice), *problems])


def id_needed(verb: str) -> ProblemError:
    """JOB_NOT_FOUND for a verb that changes the job "latest"; the fix has the command with the id of that job."""
    try:
        record, _ = latest()
    except ProblemError:
        return JOB_NOT_FOUND.error("JOB", f"{verb} changes a job, but none is given")
    whose = f"the last one that was launched from this folder is {record.job_id}, {record.state}"
    advice = f"to use that job: {command('jobs', verb, record.job_id)}"
    return JOB_NOT_FOUND.error("JOB", f"{verb} changes a job, but none is given; {whose}", advice)


def listing() -> tuple[list[JobRecord], list[Problem]]:
    """All jobs, the last launched first, and a warning for each unreadable record and each job that cannot be observed.
    The first MOST_LISTED are observed now, the others as last stored."""
    newest_first, problems = records.scan()
    shown = []
    for record in newest_first[:MOST_LISTED]:
        try:
            shown.append(observe(record))
        except ProblemError as unseen:
            shown.append(record)
            problems += [replace(problem, severity="warning") for problem in unseen.problems]
    return shown + newest_first[MOST_LISTED:], problems


def describe(record: JobRecord) -> str:
    """A job in a few lines of text."""
    run, status = record.run, record.run.read_status()
    steps = f"{status.get('step')} of {status['total_steps']}" if status.get("total_steps") else "-"
    eta_s = None if record.state.is_terminal else status.get("eta_s")
    left = f", about {duration_text(eta_s)} left" if eta_s else ""
    resume = (run.read_resumes() or [{}])[-1]
    checkpoint = resume.get("from") or f"no checkpoint: the attempt before left none, at step {resume.get('lost')}"
    processes = f"{record.processes} process" + "es" * (record.processes != 1)
    rows = {
        "job": f"{record.job_id} ({record.action} on {record.platform}, {processes})",
        "state": f"{record.state} {record.message or status.get('message') or ''}".rstrip(),
        **({"failure": f"{record.failure['class']}: {record.failure['evidence']}"} if record.failure else {}),
        **({"preflight": record.preflight} if record.preflight else {}),
        "step": steps + left,
        **({"resumed": f"after step {resume.get('step')}, from {checkpoint}"} if resume else {}),
        "run": record.run_dir + ", which is not on this machine" * (not os.path.isdir(record.run_dir)),
        "log": record.log,
        "spec": record.spec,
        "launched": f"{record.created} on {record.launcher.host}, from {record.folder or 'a folder not recorded'}",
    }
    return "\n".join(f"{name:<9} {value}" for name, value in rows.items())


def wait(
    record: JobRecord,
    timeout_s: float | None,
    show: Callable[[str], None] | None = None,
    *,
    lines: int | None = None,
) -> JobRecord:
    """Wait until the end of the job or the timeout; `show` gets the log from its last `lines` lines on, or all of it,
    and then each new piece."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    position = record.log_start if lines is None else _start_of_last(record, lines)
    while True:
        record = observe(record)
        if show:
            position = _show_from(record, position, show)
        if record.state.is_terminal or (deadline is not None and time.monotonic() > deadline):
            return record
        time.sleep(platform(record.platform).poll_s)


def cancel(job_id: str, grace_s: float) -> JobRecord:
    """Ask a job to save and stop, and kill it after `grace_s`. A job that is over is not changed."""
    record = find(job_id)
    if record.state.is_terminal:
        return record
    record = _update(record, cancel_requested=record.cancel_requested or files.now())
    platform(record.platform).cancel(record, grace_s)
    return observe(record)


def tail(record: JobRecord, lines: int) -> str:
    """The last lines of a job's log; reads at most the last MiB."""
    written, _ = platform(record.platform).log(record, -TAIL_BYTES)
    return "\n".join(written.decode(errors="replace").splitlines()[-lines:]) if lines > 0 else ""


def _start_of_last(record: JobRecord, lines: int) -> int:
    """The position in a job's log at which its last lines begin, not before `log_start`."""
    written, end = platform(record.platform).log(record, -TAIL_BYTES)
    start = end - sum(map(len, written.splitlines(keepends=True)[-lines:]))
    return max(start, record.log_start) if record.log_start <= end else start


def problems_of(record: JobRecord) -> list[Problem]:
    """The problems to show for a job: the engine's in problems.json, else one of ours. Empty when complete."""
    if record.state == State.COMPLETE:
        return []
    if not record.state.is_terminal:
        remedy = f"wait longer: {command('jobs', 'wait', record.job_id)}; or cancel it"
        return [JOB_NOT_DONE.at(record.job_id, f"the job is {record.state}", remedy)]
    if later := later_job(record):
        code, end = JOB_FAILED if record.state == State.ERROR else JOB_NOT_DONE, record.message or str(record.state)
        remedy = f"wait for that one: {command('jobs', 'wait', later.job_id)}"
        return [code.at(record.job_id, f"{end}; job {later.job_id} continues its run", remedy)]
    retry = f"resume it: {command('jobs', 'retry', record.job_id)}"
    if record.state == State.CANCELED:
        saved = "it saved itself" if record.exit_code == Exit.NOT_DONE else "without saving itself"
        # Without them nobody would hear that, for example, the disk was full.
        return [*record.run.read_problems(), JOB_NOT_DONE.at(record.job_id, f"the job was canceled, {saved}", retry)]
    if record.state == State.STOPPED:
        return [JOB_NOT_DONE.at(record.job_id, record.message or "the job was stopped and saved itself", retry)]
    return record.run.read_problems() or [_problem_of(record)]


def _problem_of(record: JobRecord) -> Problem:
    """The problem of a failed job whose engine wrote none."""
    why, message = record.failure, record.message or "the job failed"
    if why and why["class"] == failure.OUT_OF_MEMORY:
        evidence = "" if why["evidence"] in message else f": {why['evidence']}"
        return JOB_OUT_OF_MEMORY.at(record.job_id, f"{message}{evidence}")
    retry, failure_class = command("jobs", "retry", record.job_id), why["class"] if why else ""
    advice = f"read its log: {record.log}"
    if message == LAUNCHER_ENDED:
        advice = f"start it again: {retry}"
    elif message.startswith(NOT_STARTED):
        advice = f"correct what the message says, then: {retry}; with other site settings: --site FILE"
    elif failure_class == failure.IMAGE:
        advice = (
            f"repair the image, or the Python of its environment, then: {retry}; other site settings: --site FILE; "
        )
        advice += "for another image, launch the spec again"
    elif failure_class == failure.INFRASTRUCTURE:
        advice = f"resume it, from its newest checkpoint if it has one: {retry}"
    return JOB_FAILED.at(record.job_id, message, advice)


def exit_code(record: JobRecord) -> int:
    """The exit code for scripts: 0 complete; the engine's own 3, 4 and 6; 6 while it runs; else 5."""
    if record.state == State.COMPLETE:
        return int(Exit.OK)
    if not record.state.is_terminal:
        return int(Exit.NOT_DONE)
    engine_codes = (Exit.INPUT, Exit.ENVIRONMENT, Exit.NOT_DONE)
    return record.exit_code if record.exit_code in engine_codes else int(Exit.JOB_FAILED)


def _show_from(record: JobRecord, position: int, show: Callable[[str], None]) -> int:
    """Show the log after `position`, only whole lines before the job's end. Returns the new position."""
    gained, end = platform(record.platform).log(record, position)
    whole = gained if record.state.is_terminal else gained[: gained.rfind(b"\n") + 1]
    if whole:
        show(whole.decode(errors="replace").rstrip("\n"))
    return end - len(gained) + len(whole)


def sharing_jobs(job: Job) -> list[Problem]:
    """A warning for each running job of this state folder on the GPUs of this one; if both have none, they share the
    cores."""
    problems: list[Problem] = []
    for record in records.scan()[0]:
        if job.devices is None or record.devices is None or record.launcher.host != this_process().host:
            continue
        shared = [f"GPU {name}" for name in job.devices if name in record.devices]
        shared = shared if job.devices or record.devices else ["the same cores"]
        if shared and not observe(record).state.is_terminal:
            wait, cancel = (command("jobs", verb, record.job_id) for verb in ("wait", "cancel"))
            message = f"it runs on {', '.join(shared)} as this job: both are slower, and may run out of memory"
            remedy = f"cancel one of the two ({cancel}), or launch after its end ({wait})"
            remedy += ", or with CUDA_VISIBLE_DEVICES set to other GPUs" * bool(job.devices)
            problems.append(JOB_NOT_DONE.at(record.job_id, message, remedy, severity="warning"))
    return problems
