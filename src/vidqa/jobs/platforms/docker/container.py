"""The settings of Docker, and the container of a job: the body that is sent to the daemon and that --dry-run prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from vidqa.core import environment
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.mounts import Mount, mounts
from vidqa.jobs.platforms.site import SiteSettings

CONTAINER_FILE = "container.json"  # in the run folder
JOB_LABEL = "vidqa.job"
GB = 10**9


class DockerSite(SiteSettings):
    """The table [docker] of site.toml."""

    network: Literal["bridge", "host", "none"] = Field(
        default="bridge", description="The container's network; a job needs it only for a tracker such as wandb."
    )
    shm_gb: float = Field(
        default=16.0, gt=0, description="Limit of /dev/shm, which NCCL and decode workers use; Docker's own is 64 MB."
    )
    memory_gb: float = Field(default=0.0, ge=0, description="Memory limit of the container; 0 is none.")
    ulimits: dict[str, int] = Field(
        default={"memlock": -1, "stack": 64 << 20},
        description="Process limits, -1 for none; NCCL and pinned buffers lock memory.",
    )
    user: str = Field(
        default="",
        pattern=r"^(\d+:\d+)?$",
        description='"UID:GID" that the job runs under and its files belong to; empty is whoever launches.',
    )
    read_only: list[str] = Field(
        default=[], description="More absolute folders that the job may read, for example what links in the data name."
    )
    keep_container: bool = Field(
        default=False, description="Keep the container when the job is over, to look into it; otherwise it is removed."
    )


def container_name(job_id: str) -> str:
    return f"vidqa-{job_id}"


def paths_of(job: Job) -> list[Mount]:
    """The mounts of a job, with the folders that site.toml adds."""
    return mounts(job, map(Path, job.settings.read_only))


def container_body(job: Job, command: tuple[str, ...], variables: dict[str, str]) -> dict[str, Any]:
    """The request to create the container, as in Docker's API. It holds no secret."""
    settings: DockerSite = job.settings
    host: dict[str, Any] = {
        "Mounts": [
            {"Type": "bind", "Source": str(mount.path), "Target": str(mount.path), "ReadOnly": mount.read_only}
            for mount in paths_of(job)
        ],
        "NetworkMode": settings.network,
        "ShmSize": int(settings.shm_gb * GB),
        "Memory": int(settings.memory_gb * GB),
        "Ulimits": [{"Name": name, "Soft": most, "Hard": most} for name, most in settings.ulimits.items()],
        "Init": True,  # reaps orphaned processes
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "20m", "max-file": "2"}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    }
    if not settings.user:
        host["GroupAdd"] = [str(group) for group in os.getgroups() if group != os.getgid()]
    if job.gpus:
        host["DeviceRequests"] = [_gpus(job)]
    return {
        "Image": job.image,
        "Entrypoint": ["python", "-m", "vidqa.jobs.platforms.container_entrypoint"],
        "Cmd": [job.job_id, str(job.log), *command],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": settings.user or f"{os.getuid()}:{os.getgid()}",
        "Labels": {JOB_LABEL: job.job_id, "vidqa.action": job.action, "vidqa.run": str(job.run_dir)},
        "HostConfig": host,
    }


def _gpus(job: Job) -> dict[str, Any]:
    """As many GPUs as the job has processes: the first that CUDA_VISIBLE_DEVICES names, or the machine's first."""
    named = (environment.visible_gpus() or [])[: job.processes_per_node]
    which = {"DeviceIDs": named} if named else {"Count": job.processes_per_node}
    return {"Driver": "nvidia", "Capabilities": [["gpu"]], **which}
