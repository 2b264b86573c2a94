"""Settings of one SLURM cluster: the table [slurm] of site.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from vidqa.core.problem import Problem
from vidqa.jobs.platforms.problems import PLATFORM_IMAGE_UNUSED, SITE_SETTINGS
from vidqa.jobs.platforms.site import Interface, SiteSettings, is_unseen

WRONG_PATH = "correct its path; where only the nodes see the file, name its folder in `cluster_paths` of [slurm]"
IMAGE_FILES = (".sif", ".sqsh", ".squashfs", ".img")


def _of_this_cluster(option: str) -> str:
    """Refuse --clusters and its short form."""
    if option.startswith("--cl") and not option.startswith("--cluster-constraint"):
        raise ValueError("the job would go to another cluster, where nobody looks for it; let `ssh` name a host there")
    return option


# What stands behind an option of sbatch, or as a word in a script: no quotes, no spaces, nothing that a shell reads.
Word = Annotated[str, Field(pattern=r"^[\w.,:@/+*%&|\[\]-]*$")]
TimeLimit = Annotated[str, Field(pattern=r"^(\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d(:\d\d)?)?$")]
Host = Annotated[str, Field(pattern=r"^([\w.-]+@)?[\w.-]*$")]
Line = Annotated[str, Field(pattern=r"^[\P{Cc}\t]*$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[\P{Cc}\t]*$")]
Option = Annotated[str, Field(pattern=r"^--[a-z][\P{Cc}\t]*$"), AfterValidator(_of_this_cluster)]


class SlurmSite(SiteSettings):
    """Settings of the platform slurm. An empty text leaves an option to the cluster's own default."""

    backend: Literal["venv", "apptainer", "pyxis"] = Field(
        "venv", description="What the engine runs in: a Python environment, an Apptainer image, or pyxis's container."
    )
    checkout: AbsolutePath | Literal[""] = Field(
        "", description="This skill's folder on a cluster that does not see this machine's; its .venv is used."
    )
    python: Line = Field("", description="The Python of the environment or image; empty: the launcher's, or python.")
    image: Line = Field("", description="Engine image (a .sif or .sqsh file, docker://...), unless --image names one.")
    cluster_paths: list[AbsolutePath] = Field(
        [], description="Folders that the nodes see and this machine does not: what is below them is not checked here."
    )
    mounts: list[Line] = Field([], description='More folders for the container, as "FROM:TO" or "FROM:TO:ro".')
    partition: Word = Field("", description="Partition.")
    account: Word = Field("", description="Account that is charged.")
    qos: Word = Field("", description="Quality of service.")
    reservation: Word = Field("", description="Reservation.")
    constraint: Word = Field("", description="Features that the nodes must have.")
    time: TimeLimit = Field("", description='Longest time of one attempt, as sbatch has it: "24:00:00", "2-00:00:00".')
    gpu_type: Word = Field("", description='Kind of GPU to ask for, such as "h100".')
    cpus_per_task: int = Field(0, ge=0, description="Cores on each node; 0: the cluster's default.")
    memory: Word = Field("", description='Memory on each node, such as "200G"; "0" is all of it.')
    exclusive: bool = Field(False, description="Share the nodes with no other job.")
    options: list[Option] = Field([], description='More options of sbatch, such as "--exclude=n7".')
    interface: Interface = Field(
        "", description='Network by which several nodes talk, such as "ib0"; empty: what their addresses say.'
    )
    setup: list[Line] = Field([], description='Shell lines before the engine starts, such as "module load cuda".')
    warning_s: int = Field(120, ge=10, le=65535, description="Seconds before the end of its time that a job saves.")
    restarts: int = Field(
        3, ge=0, description="How often a job starts again after a failed node, a preemption, or the end of its time."
    )
    ssh: Host = Field("", description="Host to submit from, HOST or USER@HOST; empty: SLURM's commands are here.")
    ssh_config: Line = Field("", description="ssh's configuration file, where it is not ~/.ssh/config.")


def image_problems(site: SlurmSite, image: str) -> list[Problem]:
    """Problems of the image on the nodes. A file needs an absolute path: nodes do not share the working folder, and
    pyxis takes any other name for one in a registry."""
    if site.backend == "venv":
        return [PLATFORM_IMAGE_UNUSED.at(image, "the backend is venv", severity="warning")] if image else []
    if not image:
        return [
            SITE_SETTINGS.at(
                "--image",
                f"the backend is {site.backend}, and no image is named",
                "name one with --image, or with `image` in the table [slurm] of site.toml",
            )
        ]
    is_file = "://" not in image and (image.startswith(("/", ".", "~")) or image.endswith(IMAGE_FILES))
    if not is_file or is_unseen(site, image):
        return []
    path = Path(image).expanduser()
    if not image.startswith("/"):
        return [PLATFORM_IMAGE_UNUSED.at(image, "it is no absolute path", f"write {path.absolute()}")]
    return (
        [] if path.is_file() else [PLATFORM_IMAGE_UNUSED.at(image, "there is no such file on this machine", WRONG_PATH)]
    )
