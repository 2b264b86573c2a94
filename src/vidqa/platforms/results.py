"""What the scripts that launch jobs and look at them say: one result for each outcome."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.cli import Result, command
from vidqa.platforms import failure, jobs
from vidqa.platforms._base import State
from vidqa.platforms.records import SKIPPED, JobRecord, folder
from vidqa.problem import Exit, Problem

if TYPE_CHECKING:  # half a second that a look at a job does not need
    from vidqa.platforms.cosmos_container import Prepared
    from vidqa.platforms.launch import DryRun, Launched

MOST_LISTED = 50


def of_dry_run(made: DryRun) -> Result:
    """The spec that the job would get, and exactly what would run."""
    job, rendered = made.job, made.rendered
    data = {
        "run_dir": str(job.run_dir),
        "command": rendered.command,
        "environment": rendered.environment,
        "secrets": rendered.secrets,
        "files": rendered.files,
        "spec_toml": made.spec_toml,
    }
    secrets = f"# passed on by name where set: {', '.join(rendered.secrets)}"
    return Result(data, f"# {job.spec}\n{made.spec_toml}\n{secrets}\n{rendered.shown}", made.problems)


def of_files(made: Prepared) -> Result:
    """The files of a training for NVIDIA's container, and the command that submits them where they were written."""
    text = "\n".join(f"# {made.folder / name}\n{content}" for name, content in made.files.items())
    data = {name: getattr(made, name) for name in ("files", "submit", "written", "preflight")}
    data["folder"] = str(made.folder)
    return Result(data, text, made.problems, [made.submit] * made.written)


def of_launch(launched: Launched, waited: JobRecord | None = None) -> Result:
    """A job that was started or found, and what became of it where it was waited for."""
    made = of_job(launched.record) if waited is None else of_wait(waited)
    return replace(made, data={"how": launched.how, **made.data}, problems=[*launched.problems, *made.problems])


def of_wait(record: JobRecord) -> Result:
    """A job that was waited for: with what is wrong with it, and its exit code."""
    return replace(of_job(record), problems=jobs.problems_of(record), exit_code=jobs.exit_code(record))


def of_cancel(record: JobRecord) -> Result:
    """A job that has ended as it was asked to is no failure."""
    return of_job(record) if record.state == State.CANCELED else of_wait(record)


def of_job(record: JobRecord) -> Result:
    """A job as it is now, and what can be done with it."""
    verbs = ["logs"] if record.state.is_terminal else ["status", "logs"]
    if record.state in (State.STOPPED, State.CANCELED, State.ERROR) and not failure.why_not_again(record.failure):
        verbs.append("retry")
    data = {**record.as_dict(), "progress": jobs.progress(record)}
    commands = [command("jobs", verb, record.job_id) for verb in verbs]
    if record.preflight == SKIPPED and record.state != State.COMPLETE:
        commands.append(command("preflight", "--spec", record.spec, "--platform", record.platform))
    if record.state == State.COMPLETE and record.action == "evaluate":
        commands += _gaps(record)
    problems = jobs.problems_of(record) if record.state == State.ERROR else []
    return Result(data, jobs.describe(record), problems, commands, exit_code=int(Exit.OK))  # it was looked at


def _gaps(record: JobRecord) -> list[str]:
    """The command that looks at what an evaluation got wrong, as long as its run folder is there."""
    written = Path(record.run_dir) / "spec.toml"
    if not written.exists():
        return []
    asked = tomllib.loads(written.read_text(encoding="utf-8"))["dataset"]
    words = ["--results-dir", record.run_dir, "--gaps-parquet", f"{record.run_dir}/gaps.parquet"]
    words += ["--kpi-ann-path", asked["annotation_path"]]
    words += ["--kpi-media-path", asked["media_dir"]] if asked.get("media_dir") else []
    return [command("analyze_gaps", *words)]


def of_listing(found: list[JobRecord], broken: list[Problem]) -> Result:
    """The newest jobs; the records of all are in the folder that is named."""
    shown = found[:MOST_LISTED]
    lines = [f"{r.job_id}  {r.action:<8}  {r.platform}  {r.state:<8}  {r.run_dir}" for r in shown]
    if len(found) > len(shown):
        lines.append(f"and {len(found) - len(shown)} older ones, in {folder()}")
    data = {"jobs": [record.as_dict() for record in shown], "count": len(found), "folder": str(folder())}
    return Result(data, "\n".join(lines) or "no jobs yet", broken)
