"""Which GPUs of this machine each job of a study gets: as many jobs at a time share one as the study says, one if it
says nothing.

A cluster's scheduler does this itself. Here a job sees the GPUs that CUDA_VISIBLE_DEVICES of its own environment names,
which are those that have room when it is submitted. Jobs that share a GPU each keep to their part of its memory, which
their specs name: what one of them takes is never missing to another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from math import floor
from pathlib import Path

from vidqa.contract import environment
from vidqa.jobs.job_spec import process_count
from vidqa.platforms import hardware
from vidqa.preflight.gpus import least_memory, visible_gpus
from vidqa.spec import Spec
from vidqa.studies.settings import FILE, Settings
from vidqa.studies.study_problems import STUDY_SHARED

SHARED = ("local", "docker")  # platforms whose jobs share the GPUs of this machine
DRIVER_GIB = 1.0  # of a GPU, which no job can have
MEMORY = "engine.gpu_memory_gib"  # of a spec: what its job may take of each GPU


class Places:
    """The GPUs that a controller may give away, by name; none where they are somebody else's to share out. `each` is
    how many jobs share one."""

    def __init__(self, platform: str, gpus: int | None, each: int = 1) -> None:
        here = platform in SHARED and gpus != 0
        count = hardware.gpu_count() if here else 0
        self.names = (environment.visible_gpus() or [str(number) for number in range(count)])[:count]
        self.each = each

    def free(self, taken: Sequence[tuple[str, int]], processes: int, busy: Collection[str] = ()) -> list[str] | None:
        """GPUs for the processes of a job, those with the most room first; None where too few have room. A job that
        needs more than there are gets them all: its launch says what is wrong.

        `taken` names the GPU of each job that runs, and how many such jobs share one: a controller may have been
        started again with another number. A GPU that is `busy` gets no job now.
        """
        used = {name: sum((Fraction(1, each) for gpu, each in taken if gpu == name), Fraction()) for name in self.names}
        left = [name for name in self.names if used[name] + Fraction(1, self.each) <= 1 and name not in busy]
        left.sort(key=lambda name: used[name])
        return left[:processes] if len(left) >= min(processes, len(self.names)) else None

    def only(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """A launch inside the block sees these GPUs alone."""
        return environment.with_gpus(names) if self.names else nullcontext()


def memory_share(settings: Settings) -> float | None:
    """GiB of a GPU for each of the jobs of a study that share it; None where they share none. Raises STUDY_SHARED."""
    asked = settings.resources
    return share_gib(asked.trials_per_gpu) if asked.trials_per_gpu > 1 and asked.gpus != 0 else None


def share_gib(each: int) -> float | None:
    """GiB for each of so many jobs that share a GPU of this machine, the same whichever it is; None where none is seen.
    Raises STUDY_SHARED."""
    gpus = visible_gpus()
    if not gpus:
        return None
    if (has_gib := least_memory(gpus)) is None:
        message = "the memory of this machine's GPUs, of which each trial would take its share, is not known"
        raise STUDY_SHARED.error("nvidia-smi", message, "let nvidia-smi work, or set resources.trials_per_gpu = 1")
    return floor(10 * (has_gib - DRIVER_GIB) / each) / 10


def within(share_gib: float | None, asked_gib: float | None) -> float | None:
    """The limit of a job that has a share: the spec's own where that is less."""
    return min((each for each in (share_gib, asked_gib) if each is not None), default=None)


def check_sharing(folder: Path, settings: Settings, specs: Sequence[Spec]) -> None:
    """Raises STUDY_SHARED where trials are to share GPUs and cannot."""
    each, where = settings.resources.trials_per_gpu, f"{folder / FILE} resources.trials_per_gpu"
    if each == 1:
        return
    if settings.platform not in SHARED:
        message = f"{each} trials are to share a GPU; on {settings.platform} its scheduler gives GPUs away, whole ones"
        raise STUDY_SHARED.error(where, message)
    most = max(map(process_count, specs))
    if most > 1:
        message = f"{each} trials are to share a GPU, and a job of this study has {most} processes, on a GPU each"
        raise STUDY_SHARED.error(where, message)
