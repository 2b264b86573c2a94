"""The results of the scripts that launch and inspect jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.contract.cli import Result, command
from vidqa.contract.problem import Exit, Problem, bounded, exit_code_of
from vidqa.jobs import failure, watch
from vidqa.jobs.job_results import outcome_of
from vidqa.jobs.records import SKIPPED, JobRecord
from vidqa.jobs.watch import MOST_LISTED
from vidqa.platforms import job_store
from vidqa.platforms._base import HAND_OVER, Platform, State, copy_command
from vidqa.platforms.problems import JOB_RECORD_BROKEN

if TYPE_CHECKING:  # these imports cost half a second
    from vidqa.jobs.api import JobHandle
    from vidqa.jobs.cosmos_container import ContainerFiles
    from vidqa.jobs.launch import DryRun


def of_dry_run(made: DryRun, where: Platform, out: Path | None = None) -> Result:
    """The spec of the job and what would run; with `out` also as files, and the command to submit them.

    Raises PLATFORM_OUT_UNWRITABLE.
    """
    from vidqa.jobs import dry_run_files

    submit = dry_run_files.write(made, where, out) if out else ""
    job, rendered = made.job, made.rendered
    data = {
        "run_dir": str(job.run_dir),
        "command": rendered.command,
        "environment": rendered.environment,
        "secrets": rendered.secrets,
        "files": rendered.files,
        "spec_toml": made.spec_toml,
        "written": [str(out.absolute() / name) for name in dry_run_files.files_of(made)] if out else [],
        "submit": submit,
    }
    secrets = f"# passed on by name where set: {', '.join(rendered.secrets)}"
    text = f"# {job.spec}\n{made.spec_toml}\n{secrets}\n{rendered.shown}"
    steps = [*job.fetch, submit] if submit and all(job.fetch) else []
    text += "".join(f"\n# to submit it: {step}" for step in steps)
    if out and HAND_OVER in rendered.files:
        data["submit"] = f"bash {HAND_OVER}"
        text += f"\n# to submit it: copy {out.absolute()} to the cluster and run there, in the copy: bash {HAND_OVER}"
    return Result(data, text, made.problems, steps if exit_code_of(made.problems) == Exit.OK else [])


def of_files(made: ContainerFiles, out: Path | None = None) -> Result:
    """The files of a training for NVIDIA's container in the run folder or `out`, and the command that submits
    them. Raises PLATFORM_OUT_UNWRITABLE."""
    submit = made.submit
    is_elsewhere = HAND_OVER in made.files
    if out:
        from vidqa.jobs import dry_run_files

        dry_run_files.write_files(made.files, out)
        if not is_elsewhere:
            submit = f"{copy_command(made.files, out.absolute(), made.folder)} && {submit}"
    text = "\n".join(f"# {made.folder / name}\n{content}" for name, content in made.files.items())
    data = {"folder": str(made.folder), "files": made.files, "submit": submit, "written": made.written}
    can_follow = (
        (made.written or (out and not is_elsewhere)) and all(made.fetch) and exit_code_of(made.problems) == Exit.OK
    )
    steps = [*made.fetch, submit] if can_follow else []
    return Result({**data, "preflight": made.preflight}, text, made.problems, steps)


def of_launch(job: JobHandle, waited: JobRecord | None = None) -> Result:
    """A job that was started or found, and its end where the script waited."""
    made = of_job(job.record()) if waited is None else of_wait(waited)
    return replace(made, data={"how": job.how, **made.data}, problems=[*job.problems, *made.problems])


def of_wait(record: JobRecord) -> Result:
    """A job after waiting: its problems and its exit code."""
    return replace(of_job(record), problems=watch.problems_of(record), exit_code=watch.exit_code(record))


def of_cancel(record: JobRecord) -> Result:
    """A cancelled job is no failure."""
    return of_job(record) if record.state == State.CANCELED else of_wait(record)


def of_job(record: JobRecord) -> Result:
    """The state of a job, and the commands for it."""
    verbs = ["logs"] if record.state.is_terminal else ["status", "logs"]
    if record.state in (State.STOPPED, State.CANCELED, State.ERROR) and not failure.why_not_again(record.failure):
        verbs.append("retry")
    shown = outcome_of(record)
    data = {**record.as_dict(), "progress": watch.progress(record), **shown.facts}
    commands = [command("jobs", verb, record.job_id) for verb in verbs]
    if record.preflight == SKIPPED and record.state != State.COMPLETE:
        commands.append(command("preflight", "--spec", record.spec, "--platform", record.platform))
    commands += shown.next
    text = "\n".join([watch.describe(record), *(f"{name:<9} {value}" for name, value in shown.rows.items())])
    problems = watch.problems_of(record) if record.state == State.ERROR else []
    return Result(data, text, problems, commands, exit_code=int(Exit.OK))  # the look at it succeeded


def of_listing(found: list[JobRecord], problems: list[Problem]) -> Result:
    """The newest jobs, and a line for each record that cannot be read; `folder` has all records."""
    shown = found[:MOST_LISTED]
    readable = {record.job_id for record in found}
    named = [Path(problem.where).stem for problem in problems if problem.code == JOB_RECORD_BROKEN.name]
    broken = [job_id for job_id in named if job_id not in readable]
    lines = [f"{r.job_id}  {r.action:<8}  {r.platform}  {r.state:<8}  {r.run_dir}" for r in shown]
    if len(found) > len(shown):
        lines.append(f"and {len(found) - len(shown)} older ones, in {job_store.folder()}")
    lines += [f"{job_id}  its record cannot be read" for job_id in broken[:MOST_LISTED]]
    data = {
        "jobs": [record.as_dict() for record in shown],
        "count": len(found),
        "unreadable": broken[:MOST_LISTED],
        "folder": str(job_store.folder()),
    }
    return Result(data, "\n".join(lines) or "no jobs yet", bounded(problems))
