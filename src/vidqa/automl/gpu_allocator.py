"""Assigns the GPUs of this machine to the jobs of a study: each GPU to one job, or to as many as the settings say.

A cluster's scheduler does this itself. Here a job sees the GPUs in the CUDA_VISIBLE_DEVICES of its own environment.
Jobs that share a GPU each have a fixed part of its memory, written into their specs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from math import floor
from pathlib import Path

from vidqa.automl.problems import STUDY_SETTINGS
from vidqa.automl.settings import FILE, Settings
from vidqa.core import environment
from vidqa.jobs.job_spec import process_count
from vidqa.jobs.platforms import local
from vidqa.preflight.gpus import least_memory, visible_gpus
from vidqa.spec import Spec

SHARED = ("local", "docker")  # platforms whose jobs use the GPUs of this machine
DRIVER_GIB = 1.0  # of a GPU, which no job can have
ALONE = "set resources.trials_per_gpu = 1, or use trainings and evaluations of one process on local or docker"


class GpuAllocator:
    """`names` are the GPUs that a controller may assign, none where a scheduler does; `jobs_per_gpu` share one."""

    def __init__(self, platform: str, gpus: int | None, jobs_per_gpu: int = 1) -> None:
        count = local.gpu_count() if platform in SHARED and gpus != 0 else 0
        self.names = (environment.visible_gpus() or [str(number) for number in range(count)])[:count]
        self.jobs_per_gpu = jobs_per_gpu

    def free(self, used: Sequence[tuple[str, int]], processes: int, busy: Collection[str] = ()) -> list[str] | None:
        """GPUs for the processes of a job, the emptiest first; None where too few have room. A job that needs more than
        there are gets them all, and its launch reports the problem.

        `used` has for each running job its GPU and how many such jobs share it, which may differ from now: a controller
        may have been restarted with another number. A `busy` GPU gets no job now.
        """
        load = {name: sum((Fraction(1, jobs) for gpu, jobs in used if gpu == name), Fraction()) for name in self.names}
        free = [name for name in self.names if load[name] + Fraction(1, self.jobs_per_gpu) <= 1 and name not in busy]
        free.sort(key=load.__getitem__)
        return free[:processes] if len(free) >= min(processes, len(self.names)) else None

    def only(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """A launch inside the block sees these GPUs alone."""
        return environment.with_gpus(names) if self.names else nullcontext()


def memory_share(folder: Path, settings: Settings, specs: Sequence[Spec]) -> float | None:
    """GiB of a GPU for each of the jobs of a study that share it, the same on all GPUs of this machine; None where they
    share none. Raises STUDY_SETTINGS where they are to share and cannot."""
    jobs, where = settings.resources.trials_per_gpu, f"{folder / FILE} resources.trials_per_gpu"
    if jobs == 1:
        return None
    if settings.platform not in SHARED:
        message = f"{jobs} trials are to share a GPU; on {settings.platform} its scheduler gives GPUs away, whole ones"
        raise STUDY_SETTINGS.error(where, message, ALONE)
    most = max(map(process_count, specs))
    if most > 1:
        message = f"{jobs} trials are to share a GPU, and a job of this study has {most} processes, on a GPU each"
        raise STUDY_SETTINGS.error(where, message, ALONE)
    gpus = visible_gpus() if settings.resources.gpus != 0 else []
    if not gpus:
        return None
    if (total_gib := least_memory(gpus)) is None:
        message = "the memory of this machine's GPUs, of which each trial would take its share, is not known"
        raise STUDY_SETTINGS.error("nvidia-smi", message, "let nvidia-smi work, or set resources.trials_per_gpu = 1")
    return floor(10 * (total_gib - DRIVER_GIB) / jobs) / 10
