"""Results of jobs for the scripts that launch and inspect them: a dry run, a launch, a state, the end of a job.

Actions refer to the functions `of_training` to `of_quantization` by name: the scores of an evaluation, the best export
of a training, and the next commands. A missing or damaged run folder gives no results.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidqa.core import actions, files
from vidqa.core.cli import Result, command, refused_writes, size_text
from vidqa.core.environment import SECRET_NAMES, jobs_folder
from vidqa.core.files import read_object, value_in
from vidqa.core.problem import Exit, Problem, ProblemError, bounded, exit_code_of
from vidqa.core.run_folder import ANSWERS, EMBEDDINGS, QUARANTINE, QUERY_EMBEDDINGS
from vidqa.jobs import failure, records, watch
from vidqa.jobs.platforms._base import RUN_SCRIPT, SPEC_FILE, SUBMIT_SCRIPT, Platform, State, copy_command
from vidqa.jobs.problems import JOB_NOT_DONE, JOB_RECORD_BROKEN
from vidqa.jobs.records import SKIPPED, JobRecord
from vidqa.jobs.watch import MOST_LISTED

if TYPE_CHECKING:  # these imports cost half a second
    from vidqa.jobs.api import JobHandle
    from vidqa.jobs.cosmos_container import ContainerFiles
    from vidqa.jobs.launch import DryRun

SCORES = (
    "headline",
    "n",
    "accuracy",
    "accuracy_ci95",
    "ci_method",
    "majority_accuracy",
    "majority_answers",
    "one_answer",
)
PAGE = "report.html"
MOST_NAMED = 3  # of the samples that a run left out


def of_dry_run(dry_run: DryRun, platform: Platform, out: Path | None = None) -> Result:
    """The spec of the job and its command or script; with `out` also as files, and the command to submit them.

    Raises ENV_FILE_REFUSED.
    """
    job, rendered, texts, submit = dry_run.job, dry_run.rendered, files_of(dry_run), ""
    if out:
        _write_files(texts, out)
        submit = platform.submit_command(job, out.absolute())
    data = {
        "run_dir": str(job.run_dir),
        "command": rendered.command,
        "environment": rendered.environment,
        "secrets": SECRET_NAMES,
        "files": rendered.files,
        "spec_toml": dry_run.spec_toml,
        "written": [str(out.absolute() / name) for name in texts] if out else [],
        "submit": submit,
    }
    secrets = f"# passed on by name where set: {', '.join(SECRET_NAMES)}"
    text = f"# {job.spec}\n{dry_run.spec_toml}\n{secrets}\n{rendered.shown}"
    steps = [*job.fetch, submit] if submit and all(job.fetch) else []
    text += "".join(f"\n# to submit it: {step}" for step in steps)
    if out and SUBMIT_SCRIPT in rendered.files:
        data["submit"] = f"bash {SUBMIT_SCRIPT}"
        text += f"\n# to submit it: copy {out.absolute()} to the cluster and run there, in the copy: {data['submit']}"
    return Result(data, text, dry_run.problems, steps if exit_code_of(dry_run.problems) == Exit.OK else [])


def of_files(container: ContainerFiles, out: Path | None = None) -> Result:
    """The files of a training for NVIDIA's container in the run folder or `out`, and the command that submits them.
    Raises ENV_FILE_REFUSED."""
    submit = container.submit
    is_elsewhere = SUBMIT_SCRIPT in container.files
    if out:
        _write_files(container.files, out)
        if not is_elsewhere:
            submit = f"{copy_command(container.files, out.absolute(), container.folder)} && {submit}"
    text = "\n".join(f"# {container.folder / name}\n{content}" for name, content in container.files.items())
    data = {"folder": str(container.folder), "files": container.files, "submit": submit, "written": container.written}
    can_follow = (
        (container.written or (out and not is_elsewhere))
        and all(container.fetch)
        and exit_code_of(container.problems) == Exit.OK
    )
    steps = [*container.fetch, submit] if can_follow else []
    return Result({**data, "preflight": container.preflight}, text, container.problems, steps)


def files_of(dry_run: DryRun) -> dict[str, str]:
    """Text by file name: the spec of the job, and the script to submit, or else the command to run. A launch writes the
    same files into the run folder; as they contain its path, they must be there when they run."""
    run_script = {RUN_SCRIPT: f"#!/bin/bash\nexec {dry_run.rendered.shown}\n"}
    return {SPEC_FILE: dry_run.spec_toml, **(dry_run.rendered.files or run_script)}


def _write_files(texts: dict[str, str], folder: Path) -> None:
    with refused_writes(folder):
        for name, text in texts.items():
            files.write_text(folder / name, text)


def of_launch(job: JobHandle, waited: JobRecord | None = None) -> Result:
    """A job that was started or attached to, and its end if the script waited."""
    result = of_job(job.record()) if waited is None else of_wait(waited)
    return replace(result, data={"how": job.how, **result.data}, problems=[*job.problems, *result.problems])


def of_wait(record: JobRecord) -> Result:
    """A job after waiting: its problems and its exit code."""
    return replace(of_job(record), problems=watch.problems_of(record), exit_code=watch.exit_code(record))


def of_cancel(record: JobRecord) -> Result:
    """A cancelled job is no failure, unless another one that goes on with its run was meant."""
    if (later := watch.later_job(record)) and not watch.observe(later).state.is_terminal:
        remedy = f"cancel that one: {command('jobs', 'cancel', later.job_id)}"
        running = JOB_NOT_DONE.at(later.job_id, f"it continues the run of {record.job_id}, and goes on", remedy)
        return replace(of_job(record), problems=[running], exit_code=int(Exit.NOT_DONE))
    return of_job(record) if record.state == State.CANCELED else of_wait(record)


def of_job(record: JobRecord) -> Result:
    """The state of a job, and commands for it."""
    later = watch.later_job(record)
    verbs = ["logs"] if record.state.is_terminal else ["status", "wait", "logs"]
    is_unfinished = record.state in (State.STOPPED, State.CANCELED, State.ERROR)
    if is_unfinished and not later and os.path.isdir(record.run_dir) and not failure.why_retry_fails(record.failure):
        verbs.append("retry")
    shown = results_of(record)
    resumes = {"resumes": record.run.read_resumes(), **({"continued_by": later.job_id} if later else {})}
    data = {**asdict(record), "progress": record.run.read_status(), **resumes, **shown.facts}
    commands = [command("jobs", verb, record.job_id) for verb in verbs]
    commands += [command("jobs", "status", later.job_id)] if later else []
    if record.preflight == SKIPPED and record.state != State.COMPLETE:
        commands.append(command("preflight", "--spec", record.spec, "--platform", record.platform))
    commands += shown.next
    rows = {**({"continued": f"by job {later.job_id}"} if later else {}), **shown.rows}
    text = "\n".join([watch.describe(record), *(f"{name:<9} {value}" for name, value in rows.items())])
    problems = watch.problems_of(record) if record.state == State.ERROR else []
    return Result(data, text, problems, commands, exit_code=int(Exit.OK))  # observing it succeeded


def of_listing(listed: list[JobRecord], problems: list[Problem]) -> Result:
    """The newest jobs, and a problem for each unreadable record; `folder` has all records."""
    shown = listed[:MOST_LISTED]
    readable = {record.job_id for record in listed}
    named = [Path(problem.where).stem for problem in problems if problem.code == JOB_RECORD_BROKEN.name]
    broken = [job_id for job_id in named if job_id not in readable]
    lines = [f"{r.job_id}  {r.action:<8}  {r.platform}  {r.state:<8}  {r.run_dir}" for r in shown]
    if len(listed) > len(shown):
        lines.append(f"and {len(listed) - len(shown)} older ones, in {jobs_folder()}")
    lines += [f"{job_id}  its record cannot be read" for job_id in broken[:MOST_LISTED]]
    data = {
        "jobs": [asdict(record) for record in shown],
        "count": len(listed),
        "unreadable": broken[:MOST_LISTED],
        "folder": str(jobs_folder()),
    }
    return Result(data, "\n".join(lines) or "no jobs yet", bounded(problems))


@dataclass(frozen=True)
class JobResults:
    """Results of a job: `facts` for --json, `rows` of text by name, `next` commands."""

    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)


def results_of(record: JobRecord) -> JobResults:
    """The results of a complete job; empty for others."""
    if not record.state.is_terminal:
        return JobResults()
    try:
        show = actions.action(record.action).outcome
    except ProblemError:  # the plug-in of the action is no longer installed
        show = None
    results = actions.resolve(show)(record) if show else JobResults()
    page = Path(record.run_dir) / PAGE
    shown = {"report": str(page)} if os.path.isfile(page) else {}  # False, too, for a folder that denies access
    facts, rows = {**results.facts, **shown}, {**results.rows, **shown}
    if names := [problem.where for problem in record.run.read_problems(QUARANTINE)]:
        first, file = names[:MOST_NAMED], record.run.path / QUARANTINE
        facts["left_out"] = {"count": len(names), "first": first, "file": str(file)}
        rows["left out"] = (
            f"{len(names)} sample(s), named in {file}: {'; '.join(first)}{' ...' * (len(names) > MOST_NAMED)}"
        )
    return JobResults(facts, rows, results.next)


def of_training(record: JobRecord) -> JobResults:
    """The best export, and the command that evaluates it."""
    run = Path(record.run_dir)
    is_measured = record.state == State.COMPLETE and os.path.isdir(run / "best")
    following = [_evaluation(record)] if is_measured else []
    best = read_object(run / "best.json")
    if not best:
        return JobResults(next=following)
    row = f"{best.get('name')}, by {best.get('metric')} {_number_text(best.get('value'))}".rstrip()
    return JobResults({"best": best}, {"best": row}, following)


def of_evaluation(record: JobRecord) -> JobResults:
    """The scores, and the command that analyzes wrong answers."""
    if record.state != State.COMPLETE:
        return JobResults()
    metrics = read_object(Path(record.run_dir) / "metrics.json")
    if not isinstance(metrics.get("headline"), str):
        return JobResults(next=_gaps(record))
    scores = {name: metrics.get(name) for name in SCORES}
    scores |= {"functions": metrics["functions"]} if "functions" in metrics else {}
    return JobResults({"scores": scores}, {"score": metrics["headline"]}, _gaps(record))


def of_inference(record: JobRecord) -> JobResults:
    """The file of answers, and the number of records with one."""
    return _counted(record, "statuses", {"answers": ANSWERS})


def of_embedding(record: JobRecord) -> JobResults:
    """The paths of the embeddings, and the number of records with one."""
    has_queries = (Path(record.run_dir) / QUERY_EMBEDDINGS).is_file()
    queries = {"query_embeddings": QUERY_EMBEDDINGS} if has_queries else {}
    return _counted(record, "counts", {"embeddings": EMBEDDINGS, **queries})


def _counted(record: JobRecord, key: str, tables: dict[str, str]) -> JobResults:
    """The tables of a complete run, and the numbers of records under `key` in summary.json."""
    run = Path(record.run_dir)
    summary = read_object(run / "summary.json") if record.state == State.COMPLETE else {}
    if not isinstance(counts := summary.get(key), dict):
        return JobResults()
    paths = {name: str(run / table) for name, table in tables.items()}
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    return JobResults({**paths, key: counts}, {**paths, "records": shown})


def of_quantization(record: JobRecord) -> JobResults:
    """The quantized folder, its size relative to the model's, its proof, and the command that evaluates it."""
    run = Path(record.run_dir)
    facts = read_object(run / "quantize.json")
    sizes, proof, gate = (facts.get(name) for name in ("bytes", "proof", "gate"))
    if not isinstance(sizes, dict) or not isinstance(proof, dict):
        return JobResults()
    rows = {
        "model": str(facts.get("folder")),
        "scheme": str(facts.get("scheme")),
        "size": f"{_size(sizes.get('quantized'))}, {_size(sizes.get('model'))} before",
        "loss": f"{_number_text(proof.get('quantized_loss'))}, {_number_text(proof.get('loss'))} before",
    }
    if isinstance(gate, dict):
        rows["accuracy"] = str(gate.get("sentence"))
    return JobResults({"quantization": facts}, rows, [] if gate else [_evaluation(record)])


def _gaps(record: JobRecord) -> list[str]:
    """The command that analyzes an evaluation's wrong answers, if its run folder exists."""
    spec, run = record.run.read_spec()[0], record.run_dir
    annotations, media = value_in(spec, "dataset.annotation_path"), value_in(spec, "dataset.media_dir")
    words = ["--results-dir", run, "--gaps-parquet", f"{run}/gaps.parquet", "--jsonl", f"{run}/gaps.jsonl"]
    words += ["--kpi-ann-path", annotations, *(["--kpi-media-path", media] if media else [])]
    return [command("analyze_gaps", *words)] if annotations else []


def _evaluation(trained: JobRecord) -> str:
    """The command that builds an evaluation of the trained model, with data and settings of its base model's
    evaluation. Without such an evaluation, EVAL_ROOT is a placeholder for the user's data."""
    from vidqa.spec.layers import text_of

    settings = [f"{key}={text_of(value)}" for key, value in _evaluated_with(trained).items()]
    words = [word for setting in settings for word in ("--set", setting)] or ["--eval-root", "EVAL_ROOT"]
    measure = actions.action(trained.action).evaluated_by
    out = Path(trained.run_dir) / f"{measure}.toml"
    where = ("--platform", trained.platform)
    return command("build_spec", measure, "--parent-run", trained.run_dir, *words, *where, "--out", out)


def _evaluated_with(trained: JobRecord) -> dict[str, Any]:
    """The keys with other values than the defaults of the newest evaluation of a training's base model, on records from
    which no job learned. Without the keys that --parent-run sets: model, frames, system prompt."""
    from vidqa.spec.keys import flat
    from vidqa.spec.parent_layers import SAME_IN_BOTH

    measure, jobs = actions.action(actions.action(trained.action).evaluated_by), records.scan()[0]
    keys = {action.name: [data.annotations for data in action.data if data.is_trained_on] for action in actions.every()}
    learned = [value_in(job.run.read_spec()[0], key) for job in jobs for key in keys.get(job.action, ())]
    model_keys = (key for model in measure.models for key in (model.name, model.only_with))
    inherited = {*SAME_IN_BOTH, *model_keys, measure.resuming.key if measure.resuming else ""}
    defaults = {key: value for key, value in flat(measure.spec_model()).items() if key not in inherited}
    for job in jobs:
        # A link such as RUN/best names the same model as the export that it leads to.
        if job.action != measure.name or os.path.realpath(job.model) != os.path.realpath(trained.model):
            continue
        spec = job.run.read_spec()[0]
        if value_in(spec, "dataset.annotation_path") not in (None, *learned):
            values = {key: value_in(spec, key) for key in defaults}
            return {key: value for key, value in values.items() if value not in (None, defaults[key])}
    return {}


def _size(count: object) -> str:
    return size_text(count) if isinstance(count, int) else "unknown"


def _number_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else ""
