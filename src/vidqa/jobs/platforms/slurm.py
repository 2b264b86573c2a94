"""The platform "slurm": an sbatch script in the run folder, submitted here or over ssh.

SLURM requeues a job after a node failure or a preemption, and the script does so at its time limit. Every attempt is
the same job and continues in the same run folder. See slurm_script.py.
"""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import vidqa
from vidqa.core.environment import SECRET_NAMES
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.jobs.platforms import slurm_script
from vidqa.jobs.platforms._base import (
    INFRASTRUCTURE,
    LAUNCHER_ENDED,
    OUT_OF_MEMORY,
    SPEC_FILE,
    SUBMIT_SCRIPT,
    Job,
    Observed,
    Platform,
    Rendered,
    State,
    Submitted,
    copy_command,
)
from vidqa.jobs.platforms.engine_process import ended_locally, gpu_problems, vanished
from vidqa.jobs.platforms.site import is_unseen, settings_of
from vidqa.jobs.platforms.slurm_commands import PATIENCE_S, SlurmCommands, SlurmJob, accounted, find, slurm_job
from vidqa.jobs.platforms.slurm_script import SCRIPT, TASK, SlurmSite, image_problems
from vidqa.jobs.problems import (
    NOT_SEEN,
    NOT_SHARED,
    PATH_UNSEEN,
    PLATFORM_REFUSED,
    PLATFORM_SILENT,
    PLATFORM_UNREACHABLE,
    SHOW_PATH,
    SITE_SETTINGS,
)

POLL_S = 5.0  # a controller serves a whole cluster
SIGNAL_INTERVAL_S = 5.0
LOST_S = 5.0  # for a controller to accept a job after its launcher stopped waiting
END_LIMIT_S = 60.0  # SLURM lets the nodes of a killed job clean up first
LAUNCH_LIMIT = timedelta(hours=1)  # longer than the wait of any launcher, and the difference of any two clocks

# SLURM's states. A job in any other state counts as running, since a terminal state would be final.
WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
ENDED_BY_ITSELF = ("COMPLETED", "FAILED")
ENDED_BY_SLURM = {
    "NODE_FAIL": (INFRASTRUCTURE, "a node of the job failed"),
    "BOOT_FAIL": (INFRASTRUCTURE, "a node of the job did not boot"),
    "PREEMPTED": (INFRASTRUCTURE, "the job was preempted"),
    "REVOKED": (INFRASTRUCTURE, "the job was taken over by another cluster"),
    "TIMEOUT": (INFRASTRUCTURE, "the job reached its time limit"),
    "DEADLINE": (INFRASTRUCTURE, "the job reached its deadline"),
    "OUT_OF_MEMORY": (OUT_OF_MEMORY, "the job used more memory than it had asked for"),
}
SUSPENDED = "SLURM has suspended it: until it is resumed it cannot save itself"
ENDS = (*ENDED_BY_ITSELF, *ENDED_BY_SLURM, "CANCELLED")


def check(job: Job) -> list[Problem]:
    """Check a job with sbatch itself, and for problems that sbatch does not detect."""
    site: SlurmSite = job.settings
    problems = [*image_problems(site, slurm_script.image_of(job)), *unseen(job), *_checkout(job), *_cores(site)]
    problems += [*slurm_script.option_problems(site), *slurm_script.time_problems(site), *_interpreter(job)]
    problems += slurm_script.unmountable(job)
    problems += gpu_problems(job, "asked for")
    try:
        cluster, script = SlurmCommands(site.ssh, site.ssh_config), slurm_script.sbatch(job)
        answer = cluster.ask("sbatch", "--test-only", stdin=script, patience_s=PATIENCE_S)
    except ProblemError as stopped:
        return problems + stopped.problems
    return problems + ([PLATFORM_REFUSED.at("sbatch --test-only", answer.complaint)] if answer.code else [])


def unseen(job: Job) -> list[Problem]:
    """An error if the run folder is only on the cluster, since it is written here; a warning for other such paths."""
    paths = dict.fromkeys(path for path in (*job.reads, *job.writes) if is_unseen(job.settings, path))
    problems = [NOT_SEEN.at("cluster_paths", ", ".join(map(str, paths)), severity="warning")] if paths else []
    if not is_unseen(job.settings, job.run_dir):
        return problems
    problems.append(NOT_SHARED.at(job.run_dir, "cluster_paths declares it; a launch writes it from here"))
    only_here = dict.fromkeys(str(path) for path in (*job.reads, *job.writes) if not is_unseen(job.settings, path))
    return problems + [PATH_UNSEEN.at(path, "it is not below cluster_paths", SHOW_PATH["SLURM"]) for path in only_here]


def _checkout(job: Job) -> list[Problem]:
    """An error if node.sh would name this machine's installation on a cluster that does not see this machine."""
    site: SlurmSite = job.settings
    if not is_unseen(site, job.run_dir) or site.backend != "venv" or site.checkout or site.python:
        return []
    remedy = "set it to this skill's folder on the cluster, after git clone and make install there"
    return [SITE_SETTINGS.at("checkout", f"the files would name {Path(vidqa.__file__).parents[2]}", remedy)]


def _interpreter(job: Job) -> list[Problem]:
    """A warning if the Python of the environment is not on this machine; the nodes may still have it."""
    site: SlurmSite = job.settings
    python = slurm_script.python_of(site)
    if site.backend != "venv" or not python.startswith("/") or Path(python).exists() or is_unseen(site, python):
        return []
    remedy = "correct `python` or `checkout` in the table [slurm] of site.toml, unless the nodes have it"
    return [NOT_SEEN.at(python, "there is no such Python on this machine", remedy, severity="warning")]


def _cores(site: SlurmSite) -> list[Problem]:
    if site.cpus_per_task or any(option.startswith("--cpus-per-") for option in site.options):
        return []
    message = "it is not set, and many clusters then give a job one core per node"
    remedy = "set it to about 8 per GPU of a node, for decoding videos"
    return [SITE_SETTINGS.at("cpus_per_task", message, remedy, severity="warning")]


def render(job: Job) -> Rendered:
    command = ("sbatch", "--parsable", str(job.run_dir / SCRIPT))
    scripts = {SCRIPT: slurm_script.sbatch(job), TASK: slurm_script.task(job)}
    if is_unseen(job.settings, job.run_dir):
        site: SlurmSite = job.settings
        python = [slurm_script.python_of(site)] if site.backend == "venv" else []
        scripts[SUBMIT_SCRIPT] = slurm_script.submit_script(job, (SPEC_FILE, *scripts), SCRIPT, python)
    return Rendered(command, {}, scripts)


def submit_command(job: Job, folder: Path) -> str:
    if is_unseen(job.settings, job.run_dir):
        return ""
    start = f"sbatch {shlex.quote(str(job.run_dir / SCRIPT))}"
    site: SlurmSite = job.settings
    if site.ssh:
        start = shlex.join(["ssh", *(["-F", site.ssh_config] if site.ssh_config else []), site.ssh, start])
    return f"{copy_command((SPEC_FILE, SCRIPT, TASK), folder, job.run_dir)} && {start}"


def submit(job: Job, rendered: Rendered) -> dict[str, Any]:
    """Submit the script; the reference is the job's number. Raises NOT_SHARED, PLATFORM_REFUSED."""
    site: SlurmSite = job.settings
    name, cluster = slurm_script.name_of(job.job_id), SlurmCommands(site.ssh, site.ssh_config)
    if site.ssh and cluster.ask("test", "-f", str(job.run_dir / TASK)).code:
        raise NOT_SHARED.error(job.run_dir, f"{site.ssh} does not see it")
    try:
        answer = cluster.ask(*rendered.command, secrets=SECRET_NAMES, patience_s=PATIENCE_S)
    except ProblemError as failed:
        if failed.problems[0].code != PLATFORM_SILENT.name:
            raise
        time.sleep(LOST_S)
        if (number := find(cluster, name, PATIENCE_S)) is None:
            raise
        return {"slurm_id": number}  # submitted; only the answer was lost
    # sbatch may print the number with ";" and a cluster's name.
    number = answer.out.strip().splitlines()[-1].partition(";")[0] if answer.out.strip() else ""
    if answer.code or not number.isdigit():
        raise PLATFORM_REFUSED.error(rendered.command[-1], answer.complaint)
    return {"slurm_id": number}


def status(job: Submitted) -> Observed:
    cluster = _cluster(job)
    launching = _may_be_launching(job)  # first: it may submit and exit meanwhile
    try:
        slurm_id = _slurm_id(job, cluster)
        if slurm_id is None and launching:
            return Observed(State.PENDING, None, "it is being submitted")
        if slurm_id is None:
            return vanished(job, LAUNCHER_ENDED)
        named = slurm_id, slurm_script.name_of(job.job_id)
        job_in_slurm = slurm_job(cluster, *named) or _exit_code_left(job, slurm_id) or accounted(cluster, *named)
    except ProblemError as silent:
        return Observed(job.state, None, f"SLURM is unavailable: {silent.problems[0].message}")
    return _observed(job, slurm_id, job_in_slurm)


def cancel(job: Submitted, grace_s: float) -> None:
    """Remove a waiting job from the queue. Ask a running one to save, repeatedly, since a signal before the engine
    starts is lost; it is not requeued."""
    cluster = _cluster(job)
    slurm_id = _slurm_id(job, cluster)
    if slurm_id is None:
        return
    ask = partial(cluster.ask, patience_s=PATIENCE_S)
    ask("scontrol", "update", f"JobId={slurm_id}", "Requeue=0")
    ask("scancel", "--state=PENDING", slurm_id)
    deadline = time.monotonic() + grace_s
    over = _is_over_within(job, 0)
    while not over and time.monotonic() < deadline:
        if SUSPENDED not in status(job).message:  # this scancel would not return before the job is resumed
            ask("scancel", "--signal=USR1", slurm_id)
        over = _is_over_within(job, min(SIGNAL_INTERVAL_S, deadline - time.monotonic()))
    if not over:
        ask("scancel", "--full", "--signal=KILL", slurm_id)
        ask("scancel", slurm_id)
        _is_over_within(job, END_LIMIT_S)


def _is_over_within(job: Submitted, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not (over := status(job).state.is_terminal) and time.monotonic() < deadline:
        time.sleep(min(0.5, SLURM.poll_s))
    return over


def _cluster(job: Submitted) -> SlurmCommands:
    site = settings_of(job, SlurmSite)
    return SlurmCommands(site.ssh, site.ssh_config)


def _may_be_launching(job: Submitted) -> bool:
    """Whether the job's launcher may still submit it. For a launcher on another machine the record's age decides, since
    its process cannot be observed."""
    oldest = (datetime.now(UTC) - LAUNCH_LIMIT).isoformat(timespec="seconds")  # in the format of files.now
    return job.launcher.is_alive or (job.launcher.may_be_alive and job.created > oldest)


def _slurm_id(job: Submitted, cluster: SlurmCommands) -> str | None:
    """The job number; if the launcher died before storing it, found by the job's name."""
    slurm_id = (job.reference or {}).get("slurm_id")
    if isinstance(slurm_id, str) and re.fullmatch(r"\d+", slurm_id):
        return slurm_id
    return find(cluster, slurm_script.name_of(job.job_id))


def _exit_code_left(job: Submitted, slurm_id: str) -> SlurmJob | None:
    """The end that the script stored, for a job that SLURM has dropped."""
    try:
        code = int(slurm_script.exit_file(Path(job.run_dir), slurm_id).read_text())
    except (OSError, ValueError):
        return None
    return SlurmJob("COMPLETED" if code == 0 else "FAILED", exit_code=code)


def _observed(job: Submitted, slurm_id: str, job_in_slurm: SlurmJob | None) -> Observed:
    again = f"attempt {job_in_slurm.restarts + 1}; " if job_in_slurm and job_in_slurm.restarts else ""
    if job_in_slurm and job_in_slurm.state in WAITS:
        return Observed(State.PENDING, None, f"{again}waits: {job_in_slurm.reason or job_in_slurm.state}")
    if job_in_slurm and job_in_slurm.state not in ENDS:
        suspended = SUSPENDED if job_in_slurm.state == "SUSPENDED" else ""
        return Observed(State.RUNNING, None, f"{again}{suspended}".removesuffix("; "))
    if job_in_slurm is None:
        return vanished(job, f"it vanished: SLURM knows no job {slurm_id} of it, and it left no exit code")
    if job_in_slurm.state in ENDED_BY_ITSELF:
        code = int(Exit.JOB_FAILED) if job_in_slurm.exit_code is None else job_in_slurm.exit_code
        return ended_locally(job, code)
    if job_in_slurm.state == "CANCELLED":
        observed = vanished(job, "it was canceled in SLURM before it saved")
        return observed if observed.state == State.COMPLETE else replace(observed, state=State.CANCELED)
    kind, message = ENDED_BY_SLURM[job_in_slurm.state]
    observed = vanished(job, "")
    if observed.state != State.COMPLETE:
        saved = "it had saved itself" if observed.exit_code == Exit.NOT_DONE else "what it had not saved is lost"
        observed = replace(observed, message=f"{message} ({job_in_slurm.state}); {saved}")
    evidence = f"{job_in_slurm.state} {job_in_slurm.reason}".strip()
    return (
        replace(observed, failure={"class": kind, "evidence": evidence}) if observed.state == State.ERROR else observed
    )


SLURM = Platform(
    "slurm",
    check,
    render,
    submit,
    status,
    cancel,
    sees_all=lambda settings: settings.backend == "venv",
    visible_gpus=lambda settings: None,
    settings=SlurmSite,
    submit_command=submit_command,
    away=(PLATFORM_UNREACHABLE.name, PLATFORM_SILENT.name, NOT_SHARED.name),
    has_queue=True,
    poll_s=POLL_S,
)
