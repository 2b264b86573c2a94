"""Launching a job: resolve the model, name the run, write its folder and record, submit it.

    launch("train", Path("spec.toml"), "local")
    launch("train", Path("spec.toml"), "docker", Resources(image="registry/engine:0.1.0"))

A second launch of the same spec, data and model attaches to the running job, or reports that it is done. Scripts pass
`ready`, which asks preflight whether a job may start (`vidqa.preflight.launch_gate`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vidqa import spec
from vidqa.core import files, versions
from vidqa.core.cli import NOT_AGREED, USAGE, command
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.core.run_folder import PLAN
from vidqa.jobs import failure, images, records, runs, watch
from vidqa.jobs.job_spec import JobSpec, fetch_weights, job_spec_of, load_job_spec, process_count, spec_of
from vidqa.jobs.platforms import job_store, local, platform, site
from vidqa.jobs.platforms._base import NOT_STARTED, Job, Platform, Rendered, State
from vidqa.jobs.platforms.processes import this_process
from vidqa.jobs.problems import JOB_NOT_DONE, PLATFORM_NODES, PLATFORM_SILENT, PLATFORM_TOO_FEW_GPUS
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources
from vidqa.planning.problems import RESUME_NO_CHECKPOINT

SAME_WORK = (State.PENDING, State.RUNNING, State.COMPLETE)  # states of a job that a launch need not repeat
# Fields of a record that run.json has, too.
IN_RUN_FILE = ("action", "spec", "spec_fingerprint", "inputs_fingerprint", "parent", "preflight", "sequence")
STOP_S = 30.0  # for a job that has just started and has nothing to save


@dataclass(frozen=True)
class Readiness:
    """The verdict of preflight on a job before it starts: the word for its record (records.PASSED), the problems, the
    file with the plan of its samples, if any, and the warnings to omit: reported earlier, or refuted."""

    preflight: str = ""
    problems: list[Problem] = field(default_factory=list)
    plan: Path | None = None
    omitted: list[Problem] = field(default_factory=list)

    def remaining(self, *problems: list[Problem]) -> list[Problem]:
        """All problems once, without the omitted ones."""
        return [problem for problem in dict.fromkeys(chain(*problems)) if problem not in self.omitted]


class Ready(Protocol):
    """Decide whether the job of the spec at `spec_path` may start. Without `fetch` no file is fetched or written."""

    def __call__(
        self, job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool
    ) -> Readiness: ...


def unchecked(
    job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool
) -> Readiness:
    """Skip preflight, for callers that have checked the spec themselves."""
    return Readiness()


class DryRun(NamedTuple):
    """The job that a launch would start now. `spec_toml` is the resolved spec of the job."""

    job: Job
    rendered: Rendered
    spec_toml: str
    problems: list[Problem]


@dataclass(frozen=True)
class Launched:
    """The result of a launch. `how` is "started", "attached" (to a running job), "done" (an earlier job did the same),
    or "ended" (an earlier job for the same failed, stopped or was cancelled)."""

    how: str
    record: JobRecord
    problems: list[Problem]


def launch(
    action: str,
    spec_path: Path,
    platform_name: str,
    resources: Resources | None = None,
    *,
    new_run: bool = False,
    ended: bool = False,
    ready: Ready = unchecked,
) -> Launched:
    """Start the job of a spec, or find an earlier job that does the same. With `ended` this may be a job that ended
    incomplete, for `retry` to continue. Raises ProblemError with every problem."""
    resources = resources or Resources()
    where = platform(platform_name)
    settings = site.read(platform_name, resources.site)
    job_spec = load_job_spec(action, spec_path, fetch=True, settings=settings)
    last_sequence = records.last_sequence()
    earlier = None if new_run else earlier_job(job_spec, platform_name)
    if earlier and (ended or earlier.state in SAME_WORK):
        return _launched_before(earlier)
    run_dir, job_id = name_run(job_spec, new_run=new_run)
    job, readiness, problems = _checked(job_spec, spec_path, where, resources, ready, run_dir, job_id)
    if earlier and not job_spec.resumes and (step := earlier.run.read_status().get("step")):
        message = f"it did the same and ended {earlier.state} after step {step}; this job starts from the beginning"
        remedy = f"to go on with that one, cancel this one, then: {command('jobs', 'retry', earlier.job_id)}"
        problems.append(JOB_NOT_DONE.at(earlier.job_id, message, remedy, severity="warning"))
    # No cluster is contacted under the lock: later launches are seen from their records.
    with job_store.lock("launch"):
        since = [record for record in _same(job_spec, platform_name) if record.sequence > last_sequence]
        if not new_run and (others := [record for record in since if record.state in SAME_WORK]):
            return _launched_before(others[0])
        used_names = _used_names(job_spec.output_dir)
        if job_id in used_names:
            new_id = runs.new_name(job_spec.spec_fingerprint, used_names)
            job = replace(job, job_id=new_id, run_dir=run_dir if run_dir.name != job_id else run_dir.with_name(new_id))
        refuse_busy(job.run_dir, since=last_sequence)
        reserved = _reserve(job_spec, job, where, readiness, resources)
    return Launched("started", _submit(*reserved, where), problems)


def _checked(
    job_spec: JobSpec,
    spec_path: Path,
    where: Platform,
    resources: Resources,
    ready: Ready,
    run_dir: Path,
    job_id: str,
) -> tuple[Job, Readiness, list[Problem]]:
    """The job with its image and weights fetched, and all warnings. Raises the errors of preflight and platform."""
    readiness = ready(job_spec, spec_path, where.name, resources, fetch=True)
    raise_errors(readiness.problems)
    if resources.gpus and where.name == "local" and resources.gpus > (count := local.gpu_count()):
        raise PLATFORM_TOO_FEW_GPUS.error("--gpus", f"{resources.gpus} requested, {count} visible", "leave --gpus out")
    resources = with_image(where, job_spec.settings, resources, fetch=True)
    fetch_weights(job_spec)
    job = job_of(job_spec, where, job_spec.settings, resources, run_dir, job_id)
    problems = _problems_of(job, job_spec, where)
    raise_errors(problems)
    return job, readiness, readiness.remaining(job_spec.warnings, readiness.problems, problems)


def _problems_of(job: Job, job_spec: JobSpec, where: Platform) -> list[Problem]:
    return [*spec.check_with_nodes(job_spec.resolved, job.nodes), *where.check(job), *watch.sharing_jobs(job)]


def _launched_before(earlier: JobRecord) -> Launched:
    how = "done" if earlier.state == State.COMPLETE else "ended" if earlier.state.is_terminal else "attached"
    return Launched(how, earlier, [])


def dry_run(
    action: str,
    spec_path: Path,
    platform_name: str,
    resources: Resources | None = None,
    *,
    new_run: bool = False,
    ready: Ready = unchecked,
) -> DryRun:
    """The job that `launch` would start now, and its problems. Nothing is fetched, written or started."""
    resources = resources or Resources()
    where = platform(platform_name)
    settings = site.read(platform_name, resources.site)
    resources, image_warnings = with_image_unasked(where, settings, resources)
    job_spec = load_job_spec(action, spec_path, fetch=False, settings=settings)
    readiness = ready(job_spec, spec_path, platform_name, resources, fetch=False)
    job = job_of(job_spec, where, settings, resources, *name_run(job_spec, new_run=new_run))
    checked = as_offline_warnings(where, _problems_of(job, job_spec, where))
    problems = readiness.remaining(job_spec.warnings, readiness.problems, checked, image_warnings)
    return DryRun(job, where.render(job), job.spec_toml, problems)


def as_offline_warnings(where: Platform, problems: list[Problem]) -> list[Problem]:
    """Problems of a dry run or check: an unreachable platform is only a warning."""
    return [replace(p, severity="warning") if p.code in where.away else p for p in problems]


def retry(
    record: JobRecord, site_file: Path | None = None, *, agreed: bool = False, ready: Ready = unchecked
) -> Launched:
    """Launch the job of a record again: in its run folder and with its image, from its newest checkpoint. The settings
    of the platform are those of the record, unless `site_file` has others.

    Raises USAGE if the job still runs or is complete, and NOT_AGREED if it would fail again.
    """
    if not record.state.is_terminal or record.state == State.COMPLETE:
        remedy = f"look at it: {command('jobs', 'status', record.job_id)}"
        raise USAGE.error(record.job_id, f"there is nothing to retry: the job is {record.state}", remedy)
    if (reason := failure.why_retry_fails(record.failure)) and not agreed:
        again = command("jobs", "retry", record.job_id, "--yes")
        raise NOT_AGREED.error(record.job_id, reason, f"Ask the user. Once what made it fail is repaired: {again}")
    if not os.path.isdir(record.run_dir):
        remedy = f"move it back, or start a new run: {command('launch', record.action, '--spec', record.spec)}"
        raise RESUME_NO_CHECKPOINT.error(record.run_dir, f"the run folder of job {record.job_id} is not there", remedy)
    where = platform(record.platform)
    settings = site.read(where.name, site_file) if site_file else site.settings_of(record, where.settings)
    resources = Resources(nodes=record.nodes, gpus=record.requested_gpus, image=record.image)
    job_spec = job_spec_of(record, settings)
    last_sequence, run_dir = records.last_sequence(), Path(record.run_dir)
    refuse_busy(run_dir)
    new_name = partial(runs.new_name, record.spec_fingerprint)
    job_id = new_name(set(records.names()))
    job, readiness, problems = _checked(job_spec, spec_of(record), where, resources, ready, run_dir, job_id)
    with job_store.lock("launch"):
        refuse_busy(run_dir, since=last_sequence)
        job = replace(job, job_id=new_name(set(records.names())))
        reserved = _reserve(job_spec, job, where, readiness, resources, retry_of=record.job_id)
    return Launched("started", _submit(*reserved, where), problems)


def earlier_job(job_spec: JobSpec, platform_name: str) -> JobRecord | None:
    """The newest job of the same spec, data and model that is running, or complete with its run folder. Without one,
    the newest job that ended otherwise and still has its run folder."""
    others = []
    for record in map(watch.observe, _same(job_spec, platform_name)):
        has_folder = os.path.isdir(record.run_dir)
        if not record.state.is_terminal or (record.state == State.COMPLETE and has_folder):
            return record
        others += [record] * has_folder
    return others[0] if others else None


def _same(job_spec: JobSpec, platform_name: str) -> list[JobRecord]:
    """The jobs of the same spec, data and model, as last observed, the newest first."""
    same = {
        "platform": platform_name,
        "action": job_spec.action,
        "spec_fingerprint": job_spec.spec_fingerprint,
        "inputs_fingerprint": job_spec.inputs_fingerprint,
        "output_dir": str(job_spec.output_dir),
    }
    return [r for r in records.scan()[0] if all(getattr(r, name) == value for name, value in same.items())]


def name_run(job_spec: JobSpec, *, new_run: bool) -> tuple[Path, str]:
    """The run folder and the job id: of a new run, or of the run to resume.

    Raises JOB_NOT_DONE if another job uses that folder, and RESUME_NO_CHECKPOINT if a training should resume and there
    is no run of its spec: it would start from the base weights again.
    """
    out = job_spec.output_dir
    job_id = runs.new_name(job_spec.spec_fingerprint, _used_names(out))
    earlier = None if new_run or not job_spec.resumes else _run_to_resume(job_spec)
    resuming = job_spec.declared.resuming
    if earlier is None and job_spec.resumes and resuming and resuming.must_exist and not new_run:
        raise RESUME_NO_CHECKPOINT.error(resuming.key, f"no run of this spec is in {out}")
    if earlier is None:
        return out / job_id, job_id
    refuse_busy(earlier)
    return earlier, job_id


def _used_names(output_dir: Path) -> set[str]:
    return {*records.names(), *(path.name for path in output_dir.glob("*"))}


def refuse_busy(run_dir: Path, *, since: int | None = None) -> None:
    """Raise JOB_NOT_DONE if a job is running in the folder. With `since`, only jobs launched after that number count,
    in their stored states: no platform is contacted."""
    for record in records.scan()[0]:
        if record.run_dir != str(run_dir) or (since is not None and record.sequence <= since):
            continue
        if not (record if since is not None else watch.observe(record)).state.is_terminal:
            remedy = f"wait for its end ({command('jobs', 'wait', record.job_id)}) or cancel it, then run this again"
            raise JOB_NOT_DONE.error(run_dir, f"job {record.job_id} is {record.state} in it", remedy)


def with_image(where: Platform, settings: Any, resources: Resources, *, fetch: bool) -> Resources:
    """The resources with the final image. Raises the problems of images.choose and of the platform's pin_image."""
    if not where.needs_image(settings):
        return resources
    image = images.choose(resources.image, agreed=resources.agreed)
    return resources.model_copy(update={"image": where.pin_image(image, settings, fetch)})


def with_image_unasked(where: Platform, settings: Any, resources: Resources) -> tuple[Resources, list[Problem]]:
    """Result of `with_image` for a dry run: nothing is fetched, and a missing agreement to the image is a warning."""
    try:
        return with_image(where, settings, resources, fetch=False), []
    except ProblemError as unpinned:
        warnings = [replace(problem, severity="warning") for problem in unpinned.problems]
    return with_image(where, settings, resources.model_copy(update={"agreed": True}), fetch=False), warnings


def job_of(job_spec: JobSpec, where: Platform, settings: Any, resources: Resources, run_dir: Path, job_id: str) -> Job:
    """The job in the form for platforms. Raises PLATFORM_NODES."""
    processes = process_count(job_spec.spec)
    if resources.nodes < 1 or processes % resources.nodes:
        message = f"{processes} processes cannot be spread evenly over {resources.nodes} nodes"
        raise PLATFORM_NODES.error("--nodes", message)
    visible = where.visible_gpus(settings)
    gpus = resources.gpus if resources.gpus is not None else visible
    elsewhere, named = ([], []) if where.sees_all(settings) else (job_spec.media_elsewhere(), job_spec.media_named())
    return Job(
        job_id=job_id,
        action=job_spec.action,
        run_dir=run_dir,
        processes=processes,
        gpus=processes // resources.nodes if gpus is None else gpus,
        devices=None if visible is None else local.used_gpus(processes if gpus else 0),
        nodes=resources.nodes,
        image=resources.image,
        reads=(*job_spec.reads, *elsewhere),
        writes=job_spec.writes,
        settings=settings,
        spec_toml=spec.dump(job_spec.resolved),
        named=tuple(named),
        needs=job_spec.needs,
        to_come=job_spec.to_come,
        fetch=job_spec.fetch,
    )


def _reserve(
    job_spec: JobSpec,
    job: Job,
    where: Platform,
    readiness: Readiness,
    resources: Resources,
    retry_of: str | None = None,
) -> tuple[JobRecord, Job, Rendered]:
    """Write the files of the run and the record of its job, which other processes see from then on."""
    rendered = where.render(job)
    record = JobRecord(
        job_id=job.job_id,
        platform=where.name,
        action=job_spec.action,
        spec=str(job_spec.spec_path),
        spec_fingerprint=job_spec.spec_fingerprint,
        inputs_fingerprint=job_spec.inputs_fingerprint,
        output_dir=str(job_spec.output_dir),
        run_dir=str(job.run_dir),
        model=job_spec.model,
        folder=str(Path.cwd()),
        processes=job.processes,
        created=files.now(),
        launcher=this_process(),
        parent=runs.producing_run(Path(job_spec.model_folder)) if job_spec.models else None,
        nodes=job.nodes,
        gpus=job.gpus,
        devices=job.devices,
        requested_gpus=resources.gpus,
        image=job.image,
        settings=job.settings.model_dump() if job.settings is not None else None,
        preflight=readiness.preflight,
        retry_of=retry_of,
        sequence=1 + max(records.last_sequence(), runs.last_sequence(job.run_dir.parent)),
    )
    facts = {
        "run_id": job.run_dir.name,
        **{name: getattr(record, name) for name in IN_RUN_FILE},
        "models": job_spec.models,
        "versions": versions.versions(),
        "image_digest": job.image,
        "git_commit": versions.git_commit(),
    }
    runs.prepare(job.run_dir, {"spec.toml": job.spec_toml, **rendered.files}, facts, job.job_id)
    if readiness.plan:
        with suppress(OSError):  # a run makes the plan that it lacks
            files.link_or_copy(readiness.plan, job.run_dir / PLAN)
    return records.write(replace(record, log_start=job.log.stat().st_size)), job, rendered


def _submit(record: JobRecord, job: Job, rendered: Rendered, where: Platform) -> JobRecord:
    try:
        reference = where.submit(job, rendered)
    except ProblemError as refused:
        if refused.problems[0].code == PLATFORM_SILENT.name:
            raise _perhaps_started(refused, record) from refused
        why = failure.classify(refused.exit_code, "", refused.problems, "")
        message = f"{NOT_STARTED}: {why['evidence']}"
        records.update(record.job_id, state=State.ERROR, exit_code=refused.exit_code, message=message, failure=why)
        raise
    try:
        record = records.update(record.job_id, reference=reference)
    except ProblemError as unwritten:
        raise _cancel_unrecorded(unwritten, where, replace(record, reference=reference)) from unwritten
    if record.cancel_requested:  # before it was submitted
        where.cancel(replace(record, reference=reference), 0)
    with suppress(ProblemError):  # it was started; the next observation reports the problem
        record = watch.observe(record)
    return record


def _cancel_unrecorded(unwritten: ProblemError, where: Platform, record: JobRecord) -> ProblemError:
    """End a job whose record cannot be written, as on a full disk: a failed launch must leave no running job."""
    first, *others = unwritten.problems
    try:
        where.cancel(replace(record, cancel_requested=files.now()), STOP_S)
        message = f"{first.message}; the job {record.job_id}, which had been started, was ended"
    except ProblemError as failed:
        message = f"{first.message}; the job {record.job_id} was started and may run: {failed.problems[0].message}"
    return ProblemError([replace(first, message=message), *others])


def _perhaps_started(silent: ProblemError, record: JobRecord) -> ProblemError:
    """A submission without an answer may have started the job. Its record is kept, and a later status finds the job by
    its name."""
    first, *others = silent.problems
    advice = f"It may have started; once the platform responds: python scripts/jobs.py status {record.job_id}"
    return ProblemError([replace(first, remedy=f"{first.remedy} {advice}"), *others])


def _run_to_resume(job_spec: JobSpec) -> Path | None:
    """The newest run of this spec. Saved answers are useless with another model or other questions."""
    values = {"action": job_spec.action, "spec_fingerprint": job_spec.spec_fingerprint}
    if job_spec.declared.resuming and job_spec.declared.resuming.same_inputs:
        values["inputs_fingerprint"] = job_spec.inputs_fingerprint
    return runs.newest_run(job_spec.output_dir, **values)
