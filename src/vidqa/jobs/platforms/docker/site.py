"""The table [docker] of site.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vidqa.jobs.platforms.site import SiteSettings


class DockerSite(SiteSettings):
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
