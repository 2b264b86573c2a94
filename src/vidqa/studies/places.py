"""Which GPUs of this machine each job of a study gets: jobs that run at the same time share none.

A cluster's scheduler does this itself. Here jobs see the GPUs that CUDA_VISIBLE_DEVICES names, so it is set to those
that are free while a job is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from vidqa.contract import environment
from vidqa.platforms import hardware

SHARED = ("local", "docker")  # platforms whose jobs share the GPUs of this machine


class Places:
    """The GPUs that a controller may give away, by name; none where they are somebody else's to share out."""

    def __init__(self, platform: str, gpus: int | None) -> None:
        here = platform in SHARED and gpus != 0
        count = hardware.gpu_count() if here else 0
        self.names = (environment.visible_gpus() or [str(number) for number in range(count)])[:count]

    def free(self, taken: Sequence[str], processes: int) -> list[str] | None:
        """GPUs for the processes of a job; None where too few are free. A job that needs more than there are gets them
        all: its launch says what is wrong."""
        left = [name for name in self.names if name not in taken]
        return left[:processes] if len(left) >= min(processes, len(self.names)) else None

    @contextmanager
    def only(self, names: Sequence[str]) -> Iterator[None]:
        """A launch inside the block sees these GPUs alone."""
        if not self.names:
            yield
            return
        environment.adopt({"CUDA_VISIBLE_DEVICES": ",".join(names)})
        try:
            yield
        finally:
            environment.adopt({"CUDA_VISIBLE_DEVICES": ",".join(self.names)})
