"""Warnings about running local jobs on the GPUs, or without GPUs on the cores, of a local job about to start."""

from vidqa.core import environment
from vidqa.core.cli import command
from vidqa.core.problem import Problem
from vidqa.jobs import records, watch
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.processes import environment_of, this_process
from vidqa.jobs.problems import JOB_NOT_DONE
from vidqa.jobs.records import JobRecord


def sharing_jobs(job: Job, platform_name: str) -> list[Problem]:
    """A warning for each running job of this state folder whose GPUs, by their names in CUDA_VISIBLE_DEVICES, the job
    would use, too; if both have none, they share the cores."""
    if platform_name != "local":
        return []
    own, problems = _used_gpus(environment.visible_gpus(), job), []
    for record in records.scan()[0]:
        if (record.platform, record.launcher.host) != ("local", this_process().host) or record.state.is_terminal:
            continue
        if watch.observe(record).state.is_terminal or (variables := environment_of(record.job_id)) is None:
            continue
        others = _used_gpus(environment.gpu_names(variables.get(environment.GPUS)), record)
        devices = [f"GPU {name}" for name in own if name in others] if own or others else ["the same cores"]
        if devices:
            wait, cancel = (command("jobs", verb, record.job_id) for verb in ("wait", "cancel"))
            message = f"it runs on {', '.join(devices)} as this job: both are slower, and may run out of memory"
            remedy = f"cancel one of the two ({cancel}), or launch after its end ({wait})"
            remedy += ", or with CUDA_VISIBLE_DEVICES set to other GPUs" * bool(own)
            problems.append(JOB_NOT_DONE.at(record.job_id, message, remedy, severity="warning"))
    return problems


def _used_gpus(names: list[str] | None, job: Job | JobRecord) -> list[str]:
    """The names of the GPUs of a job's processes: one for each, in the order of `names`."""
    count = job.processes if job.gpus else 0
    return (names if names is not None else [str(number) for number in range(count)])[:count]
