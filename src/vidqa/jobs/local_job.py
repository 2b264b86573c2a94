"""A job without a record that a script runs on this machine and waits for: an inference, or the proof of an action."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from vidqa.core import environment
from vidqa.core.files import write_text
from vidqa.core.problem import Exit, ProblemError, raise_errors
from vidqa.core.run_folder import RunFolder
from vidqa.jobs.job_spec import JobSpec, fetch_weights, load_job_spec
from vidqa.jobs.launch import refuse_busy
from vidqa.jobs.platforms import hardware, local
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.problems import JOB_FAILED, JOB_NOT_DONE, RESUME_NO_CHECKPOINT
from vidqa.jobs.runs import newest_run
from vidqa.spec import Layer, dump, resolve

ACTION = "inference"
PROOF = "proof"  # the run folder of a proof


def inference_job(layers: Iterable[Layer], folder: Path) -> Job:
    """The job with run folder `folder`: writes the spec of these layers there and downloads the models. Raises the
    problems of the spec and of its inputs, and PLATFORM_TOO_FEW_GPUS."""
    spec_path = folder / "spec.toml"
    write_text(spec_path, dump(resolve(ACTION, layers).spec))
    return _prepared(load_job_spec(ACTION, spec_path, fetch=True), folder)


def prove(action: str, spec_path: Path) -> Path:
    """Run the proof of an action. Returns its run folder: the proof of a run lies in the run whose own spec it is, else
    in the newest run of the spec; any other lies beside the runs. Raises RESUME_NO_CHECKPOINT where there is no such
    run, RUN_FOLDER_BUSY where a job works in it, and the problems of the engine."""
    job_spec = load_job_spec(action, spec_path, fetch=True)
    folder = job_spec.output_dir / PROOF
    if job_spec.declared.proves_run:
        own = spec_path.absolute().parent
        is_run = RunFolder(own).read_run().get("action") == action
        fingerprint = job_spec.spec_fingerprint
        run = own if is_run else newest_run(job_spec.output_dir, action=action, spec_fingerprint=fingerprint)
        if run is None:
            raise RESUME_NO_CHECKPOINT.error(
                job_spec.output_dir, f"it holds no run of {spec_path}", "name the run's own: --spec RUN/spec.toml"
            )
        refuse_busy(run)
        folder = run / PROOF
    run_engine(_prepared(job_spec, folder), "--prove")
    return folder


def _prepared(job_spec: JobSpec, folder: Path) -> Job:
    """The job, with its models downloaded and its spec written. Raises PLATFORM_TOO_FEW_GPUS."""
    fetch_weights(job_spec)
    processes = job_spec.declared.processes(job_spec.resolved)
    job = Job(folder.name, job_spec.action, folder, processes=processes, gpus=hardware.gpu_count())
    raise_errors(local.gpu_problems(job))
    write_text(job.spec, dump(job_spec.resolved))
    return job


def run_engine(job: Job, *options: str) -> None:
    """Run the engine with its output on the terminal; it ends with this process. Raises its problems."""
    rendered = local.render(job)
    variables = environment.child_environment(**rendered.environment, **{environment.PARENT: str(os.getpid())})
    process = subprocess.run([*rendered.command, *options], env=variables, stdin=subprocess.DEVNULL, stdout=2)
    run = RunFolder(job.run_dir)
    status = run.read_status()
    if status.get("state") == "COMPLETE":
        return
    if status.get("exit_code") == Exit.NOT_DONE:
        raise JOB_NOT_DONE.error(job.run_dir, "it was stopped; with --out it goes on where it ended", "ask again")
    failure = JOB_FAILED.at(job.run_dir, f"the engine ended with {process.returncode}")
    raise ProblemError(run.read_problems() or [failure])
