"""An inference that a script runs on this machine and waits for, without a job record."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vidqa.contract.files import write_text
from vidqa.contract.problem import raise_errors
from vidqa.jobs.job_spec import fetch_weights, load_job_spec
from vidqa.platforms import hardware, local
from vidqa.platforms._base import Job
from vidqa.spec import Layer, dump, resolve

ACTION = "inference"


def inference_job(layers: Iterable[Layer], folder: Path) -> Job:
    """The job with run folder `folder`: writes the spec of these layers there and downloads the models. Raises the
    problems of the spec and of its inputs, and PLATFORM_TOO_FEW_GPUS."""
    spec_path = folder / "spec.toml"
    write_text(spec_path, dump(resolve(ACTION, layers).spec))
    job_spec = load_job_spec(ACTION, spec_path, fetch=True)
    fetch_weights(job_spec)
    processes = job_spec.declared.processes(job_spec.resolved)
    job = Job(folder.name, ACTION, folder, processes=processes, gpus=hardware.gpu_count())
    raise_errors(local.gpu_problems(job))
    write_text(job.spec, dump(job_spec.resolved))
    return job
