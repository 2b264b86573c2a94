"""Saving in the background: a thread that saves, and snapshots of tensors in host memory that it writes.

On a GPU the copies run on a separate stream into pinned memory, during the next step's forward and backward; only
the update of the weights waits for them, and it waits on the device. The saving thread launches them: a stream
queues a thousand at a time, a large model has more, and the launching thread waits. The memory is allocated once, in
the background, and kept: as many bytes as are copied. The environment of a job faults it in page by page
before pinning (see `platforms.engine_process`): while CUDA pins memory, no thread can launch a kernel.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import torch
from torch.distributed.tensor import DTensor

from vidqa.core.cli import note
from vidqa.engine.distributed import World, local_part
from vidqa.engine.memory import host_memory_like, use_device
from vidqa.engine.problems import ENGINE_SAVE_FAILED
from vidqa.engine.torch_private import dtensor_like

SETTLE_S = 120.0
SWITCH_S = 0.0005
WITHOUT_SNAPSHOT = 'Give the job more host memory, or set train.ckpt.save_mode = "sync".'


class Background:
    """A background thread that runs the same jobs in the same order on every rank. The error of a job is raised in
    `poll`, `start` or `finish`."""

    def __init__(self, world: World) -> None:
        self.front = world
        # Jobs use a separate group: their messages never meet those of the training.
        self.world = replace(world, objects=world.saving)
        self._thread = ThreadPoolExecutor(1, "saving", initializer=use_device, initargs=(world.device,))
        self._job: Future[None] | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Start a job once the previous one has ended."""
        self.finish()
        self._job = self._thread.submit(_politely, job)

    def poll(self) -> None:
        """Raise the error of a job that has failed on some rank, for which the others wait in theirs, or has ended on
        every rank; cheap enough for every step."""
        if job := self._job:
            states = self.front.gather("running" if not job.done() else "failed" if job.exception() else "done")
            if "failed" in states or "running" not in states:
                self.finish()

    def finish(self) -> None:
        """Wait for the running job."""
        job, self._job = self._job, None
        if job:
            job.result()

    def settle(self) -> None:
        """Wait, after a failure elsewhere, until a job no longer writes (a full disk has no room before that), and
        ignore its result."""
        job, self._job = self._job, None
        if job:
            with suppress(TimeoutError):
                job.exception(timeout=SETTLE_S)


def _politely(job: Callable[[], None]) -> None:
    """Run a job with a short thread switch interval: the training thread needs the interpreter after each kernel."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        job()
    finally:
        sys.setswitchinterval(before)


class PinnedSnapshot:
    """Host memory for tensors by name. `reserve` may run in another thread before the first `copy`."""

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.pinned else None
        self._slots: dict[str, torch.Tensor] = {}  # this rank's part of each tensor
        self._updated: torch.cuda.Event | None = None  # when the tensors to copy are computed
        self._copied: torch.cuda.Event | None = None
        self._launched = threading.Event()
        self._launched.set()

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate memory for the `tensors` that have none yet. Raises ENGINE_SAVE_FAILED."""
        waiting = {name: local_part(tensor) for name, tensor in tensors.items() if name not in self._slots}
        try:
            self._slots.update(host_memory_like(waiting, pinned=self.pinned))
        except RuntimeError as refused:
            reason = str(refused).splitlines()[0]
            if not self.pinned:
                raise ENGINE_SAVE_FAILED.error("host memory", reason, WITHOUT_SNAPSHOT) from refused
            note(f"host memory cannot be pinned, so steps wait for checkpoints: {reason}")
            self.pinned = False
            self.reserve(tensors)

    def announce(self) -> None:
        """Announce, in the training thread, that another thread will call `copy` with the tensors' present values."""
        if self.stream:
            self._updated = torch.cuda.current_stream().record_event()
        self._launched.clear()

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy the tensors and wait for the end. The same memory is used every time: the result of an earlier call is
        overwritten."""
        try:
            self.reserve(tensors)
            with torch.cuda.stream(self.stream):  # does nothing if there is none
                if self.stream and self._updated:
                    self.stream.wait_event(self._updated)
                for name, tensor in tensors.items():
                    self._slots[name].copy_(local_part(tensor), non_blocking=True)
                if self.stream:
                    self._copied = self.stream.record_event()
        finally:
            self._launched.set()
        if self._copied:
            self._copied.synchronize()
        copies = {name: self._slots[name] for name in tensors}
        sharded = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
        return copies | {name: dtensor_like(tensor, copies[name]) for name, tensor in sharded.items()}

    def hold_update(self) -> None:
        """Make work that this thread launches from now on run after the copies; called before every optimizer step."""
        self._launched.wait()
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
