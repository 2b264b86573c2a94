"""A thread beside the training that saves, one save at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import torch

from vidqa.engine.distributed import World

SETTLE_S = 120.0
SWITCH_S = 0.0005


class Background:
    """Runs the same jobs in the same order on every rank. A job that fails raises on all of them, in `poll`, `start` or
    `finish`."""

    def __init__(self, world: World) -> None:
        self.front = world
        # Jobs talk over a group of their own: their messages never meet those of the training.
        self.world = replace(world, objects=world.saving)
        self._thread = ThreadPoolExecutor(1, "saving", initializer=_use, initargs=(world.device,))
        self._job: Future[None] | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job once the one before has ended."""
        self.finish()
        self._job = self._thread.submit(_politely, job)

    def poll(self) -> None:
        """Raise the error of a job that has ended on every rank; cheap enough for every step."""
        if self._job and all(self.front.gather(self._job.done())):
            self.finish()

    def finish(self) -> None:
        """Wait for the job under way."""
        job, self._job = self._job, None
        if job:
            job.result()

    def settle(self) -> None:
        """After a failure elsewhere: wait until a job no longer writes (a full disk has no room before that), however
        it ends."""
        job, self._job = self._job, None
        if job:
            with suppress(TimeoutError):
                job.exception(timeout=SETTLE_S)


def _politely(job: Callable[[], None]) -> None:
    """Run a job with a short thread switch interval: the thread that trains needs the interpreter after each kernel."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        job()
    finally:
        sys.setswitchinterval(before)


def _use(device: torch.device) -> None:
    """A new thread would otherwise use the first GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
