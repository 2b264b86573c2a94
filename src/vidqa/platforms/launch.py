"""From a spec to a running job: resolve the model, name the run, write its folder and record, submit it.

    launch("train", Path("spec.toml"), "local")

A second launch of the same spec, data and model attaches to the job that runs, or says that it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.platforms import hardware, jobs, platform, records, runs
from vidqa.platforms._base import Job, Platform, Rendered, State
from vidqa.platforms.asked import Asked, ask, process_count
from vidqa.platforms.problems import NOTHING_TO_RESUME, RUN_FOLDER_BUSY
from vidqa.platforms.processes import this_process
from vidqa.platforms.records import JobRecord
from vidqa.problem import Problem, raise_errors


@dataclass(frozen=True)
class Launched:
    """`how` is "started", "attached" (to a running job), or "done" (an earlier job has done just this)."""

    how: str
    record: JobRecord
    problems: list[Problem]


def launch(action: str, spec_path: Path, platform_name: str, *, new_run: bool = False) -> Launched:
    """Start the job of a spec, or find the one that does the same. Raises ProblemError with all that is wrong."""
    where = platform(platform_name)
    asked = ask(action, spec_path, fetch=True)
    with records.lock("launch"):
        earlier = None if new_run else earlier_job(asked, platform_name)
        if earlier:
            return Launched("done" if earlier.state.is_terminal else "attached", earlier, [])
        run_dir, job_id = name_run(asked, new_run=new_run)
        job = job_of(asked, run_dir, job_id)
        problems = where.check(job)
        raise_errors(problems)
        return Launched("started", _start(asked, job, where), [*asked.warnings, *problems])


def dry_run(action: str, spec_path: Path, platform_name: str) -> tuple[Job, Rendered, str, list[Problem]]:
    """What `launch` would run now: the job, its command, its spec.toml. Nothing is fetched, written or started."""
    where = platform(platform_name)
    asked = ask(action, spec_path, fetch=False)
    run_dir, job_id = name_run(asked, new_run=False)
    job = job_of(asked, run_dir, job_id)
    return job, where.render(job), spec.dump(asked.resolved), [*asked.warnings, *where.check(job)]


def earlier_job(asked: Asked, platform_name: str) -> JobRecord | None:
    """The newest job that does the same and runs, or has completed and still has its run folder."""
    same = {
        "platform": platform_name,
        "action": asked.action,
        "spec_fingerprint": asked.spec_fingerprint,
        "inputs_fingerprint": asked.inputs_fingerprint,
        "output_dir": str(asked.output_dir),
    }
    for record in records.scan()[0]:
        if any(getattr(record, name) != value for name, value in same.items()):
            continue
        record = jobs.observe(record)
        if not record.state.is_terminal or (record.state == State.COMPLETE and Path(record.run_dir).is_dir()):
            return record
    return None


def name_run(asked: Asked, *, new_run: bool) -> tuple[Path, str]:
    """The run folder and the job's name: those of a new run, or the folder of the run that is to be resumed.

    Raises RUN_FOLDER_BUSY where another job is in that folder, NOTHING_TO_RESUME where a training is to go on and no
    run of its spec is there: it would start from the base weights again.
    """
    out = asked.output_dir
    existing, _ = records.scan()
    taken = {record.job_id for record in existing} | {path.name for path in out.glob("*")}
    job_id = runs.new_name(asked.spec_fingerprint, taken)
    earlier = None if new_run or not asked.resumes else _run_to_resume(asked)
    if earlier is None and asked.resumes and asked.action == "train" and not new_run:
        raise NOTHING_TO_RESUME.error("train.resume", f"no run of this spec is in {out}")
    if earlier is None:
        return out / job_id, job_id
    for record in existing:
        if record.run_dir == str(earlier) and not jobs.observe(record).state.is_terminal:
            raise RUN_FOLDER_BUSY.error(earlier, f"job {record.job_id} is {record.state} in it")
    return earlier, job_id


def job_of(asked: Asked, run_dir: Path, job_id: str) -> Job:
    return Job(job_id, asked.action, run_dir, process_count(asked.spec), hardware.gpu_count())


def _start(asked: Asked, job: Job, where: Platform) -> JobRecord:
    parent = runs.run_that_made(Path(asked.model_folder))
    rendered = where.render(job)
    runs.prepare(job.run_dir, spec.dump(asked.resolved), _run_facts(asked, job, parent), job.job_id)
    record = records.write(_record(asked, job, where.name, parent))
    reference = where.submit(job, rendered)
    return records.update(record.job_id, reference=reference)


def _record(asked: Asked, job: Job, platform_name: str, parent: str | None) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        platform=platform_name,
        action=asked.action,
        spec=str(asked.spec_path),
        spec_fingerprint=asked.spec_fingerprint,
        inputs_fingerprint=asked.inputs_fingerprint,
        output_dir=str(asked.output_dir),
        run_dir=str(job.run_dir),
        model=asked.model,
        processes=job.processes,
        created=records.now(),
        launcher=this_process().as_dict(),
        parent=parent,
        log_start=job.log.stat().st_size,
    )


def _run_facts(asked: Asked, job: Job, parent: str | None) -> dict[str, Any]:
    return {
        "run_id": job.run_dir.name,
        "action": asked.action,
        "spec": str(asked.spec_path),
        "spec_fingerprint": asked.spec_fingerprint,
        "inputs_fingerprint": asked.inputs_fingerprint,
        "models": asked.models,
        "parent": parent,
        "versions": runs.versions(),
        "image_digest": None,  # no container on this platform
        "git_commit": runs.git_commit(),
    }


def _run_to_resume(asked: Asked) -> Path | None:
    """The newest run of this spec. Saved answers are of no use with another model or other questions."""
    wanted = {"action": asked.action, "spec_fingerprint": asked.spec_fingerprint}
    if asked.action == "evaluate":
        wanted["inputs_fingerprint"] = asked.inputs_fingerprint
    return runs.newest_run(asked.output_dir, **wanted)
