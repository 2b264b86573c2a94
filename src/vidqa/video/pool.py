"""Decode in worker processes that are killed when they hang: one bad file costs its time limit, not the run.

with DecodePool(workers=4, timeout_s=60, transform="vidqa.engine.data.pixels:resize_frames") as pool:
    answers = [pool.submit(request) for request in requests]
    frames = answers[0].result()                    # an array or a Problem
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from vidqa.core.environment import child_environment
from vidqa.core.problem import Problem
from vidqa.video.problems import MEDIA_DECODER_KILLED, MEDIA_UNREADABLE, VIDEO_DECODE_TIMEOUT
from vidqa.video.source import place
from vidqa.video.types import ImageMeta, VideoMeta

START_LIMIT_S = 300.0  # a worker imports its transform before its first request; torch from a cold disk is slow
RETIRE_AFTER = 2000  # requests; decoders leak some memory with every file, and a new worker starts without
EXIT_WAIT_S = 5.0  # between the end of a worker's pipe and its exit
OUT_OF_MEMORY = 12  # exit code of a worker that hits a memory limit other than the kernel's OOM killer
# The worker gets this process's module path, so that a program started from any folder finds the library.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from vidqa.video.worker import main; main(sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request for the metadata of a file: an untrusted file is not even opened in a process that others depend on."""

    path: str
    member: str | None
    kind: str  # "video" | "image"

    @property
    def where(self) -> str:
        return place(self.path, self.member)


@dataclass(frozen=True, slots=True)
class DecodeRequest(ProbeRequest):
    """A request for frames `indices` of a video (ignored for an image), resized by the pool's transform."""

    indices: tuple[int, ...]
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class FramesFile:
    """The path of a file to which the worker wrote the frames of a request."""

    path: str


Decoded = np.ndarray | Problem
Answered = Decoded | FramesFile | VideoMeta | ImageMeta


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    request: ProbeRequest
    answer: Future[Any]
    admit: Callable[[], bool] | None
    store_at: str


class DecodePool:
    """Worker processes, each served by a thread that waits at most `timeout_s` for each request.

    `transform` names a function "module:name", called in the worker as f(frames, height, width) on uint8
    [n, H, W, 3], a few frames at a time; it must treat frames one by one. Without it the frames come back as decoded.
    `store` names a function that writes all frames of a request to a file, f(path, frames): frames then reach other
    processes without passing through a pipe and through this process.
    A request that takes too long gives VIDEO_DECODE_TIMEOUT, one that crashes the worker MEDIA_UNREADABLE; in both
    cases the worker is replaced. A worker that the system kills, as it does when memory is full, says nothing about
    the file: the request is tried again while no other worker decodes, and gives MEDIA_DECODER_KILLED if that worker
    is killed, too. Workers end with this process, however it ends.
    """

    def __init__(self, workers: int, timeout_s: float, transform: str | None = None, store: str | None = None) -> None:
        self.workers, self.timeout_s = workers, timeout_s
        self.functions = transform or "", store or ""
        self.waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.slots = _Slots(workers)
        self._servers = [_Server(self) for _ in range(workers)]
        for server in self._servers:
            server.start()

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, request: ProbeRequest, *, store_at: str = "", admit: Callable[[], bool] | None = None
    ) -> Future[Any]:
        """Return a future of uint8 frames, for a ProbeRequest of VideoMeta or ImageMeta, or of a Problem.

        With `store_at` it resolves to FramesFile once the frames are in that file, or to the frames if it cannot be
        written. `admit` is called in a thread of the pool when a worker is free for the request. If it returns False,
        the request is cancelled; an exception in it is raised by the future.
        """
        if self.closed.is_set():
            raise RuntimeError("the decode pool is closed")
        job = _Job(request, Future(), admit, store_at)
        self.waiting.put(job)
        return job.answer

    def close(self) -> None:
        """Stop at once: waiting requests are cancelled, running ones are cut off."""
        self.closed.set()
        while not self.waiting.empty():
            job = self.waiting.get()
            if job is not None:
                job.answer.cancel()
        for _ in self._servers:
            self.waiting.put(None)
        for server in self._servers:
            server.stop_worker()
        for server in self._servers:
            server.join()


class _Slots:
    """A lock for any number of workers at once, or one alone, in the order of arrival."""

    def __init__(self, workers: int) -> None:
        self._workers, self._free, self._queue = workers, threading.Semaphore(workers), threading.Lock()

    @contextmanager
    def acquired(self, *, alone: bool = False) -> Iterator[None]:
        count = self._workers if alone else 1
        with self._queue:
            for _ in range(count):
                self._free.acquire()
        try:
            yield
        finally:
            self._free.release(count)


class _Server(threading.Thread):
    """The thread of one worker process: starts it when there is work, feeds it, replaces it when it fails.

    No other thread may start the worker, because the kernel's parent-death signal follows the thread.
    """

    def __init__(self, pool: DecodePool) -> None:
        super().__init__(name="decode-server", daemon=True)
        self.pool = pool
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe: Connection | None = None
        self.served = 0  # requests of this worker

    def run(self) -> None:
        # Workers inherit the blocked signals: where a batch system signals every process of a job to stop, the engine
        # can still decode.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
        while (job := self.pool.waiting.get()) is not None:
            try:
                if job.admit is not None and not job.admit():
                    job.answer.cancel()
            except Exception as failed:  # noqa: BLE001  raised by the future; this thread must go on
                job.answer.set_exception(failed)
                continue
            if not job.answer.set_running_or_notify_cancel():
                continue
            try:
                job.answer.set_result(self._serve(job.request, job.store_at))
            except _StartFailed as failed:
                job.answer.set_exception(RuntimeError(str(failed)))
        self.stop_worker()
        if self.pipe is not None:
            self.pipe.close()

    def stop_worker(self) -> None:
        process = self.process
        if process is not None:
            process.kill()
            process.wait()

    def _serve(self, request: ProbeRequest, store_at: str) -> Answered:
        try:
            with self.pool.slots.acquired():
                return self._attempt(request, store_at)
        except _Killed:
            pass
        try:
            with self.pool.slots.acquired(alone=True):
                return self._attempt(request, store_at)
        except _Killed as again:
            message = f"the decoder {again} while it decoded this file, and again with no other decoder running"
            return MEDIA_DECODER_KILLED.at(request.where, message)

    def _attempt(self, request: ProbeRequest, store_at: str) -> Answered:
        if self.served >= RETIRE_AFTER:
            self.stop_worker()
        if self.process is None or self.process.poll() is not None:
            self._start_worker()
        self.served += 1
        assert self.pipe is not None and self.process is not None
        deadline = time.monotonic() + self.pool.timeout_s
        try:
            self.pipe.send((request, store_at))
            if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
                self.stop_worker()
                return VIDEO_DECODE_TIMEOUT.at(request.where, f"not decoded within {self.pool.timeout_s:g} s")
            return self._receive()
        except (EOFError, OSError):
            return MEDIA_UNREADABLE.at(request.where, f"the decoder {self._exit_reason()}")

    def _receive(self) -> Answered:
        assert self.pipe is not None
        header = self.pipe.recv()
        if isinstance(header, (Problem, FramesFile, VideoMeta, ImageMeta)):
            return header
        frames = np.empty(header, np.uint8)
        self.pipe.recv_bytes_into(frames.reshape(-1).view(np.uint8).data)
        return frames

    def _start_worker(self) -> None:
        if self.pipe is not None:
            self.pipe.close()
        self.pipe, theirs = Pipe()
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        words = [str(theirs.fileno()), str(os.getpid()), *self.pool.functions]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", BOOT, path, *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # a signal to the engine's group must not reach workers: they end with their parent
                env=child_environment(OMP_NUM_THREADS="1"),
            )
        self.served = 0
        if self.pool.closed.is_set():
            self.stop_worker()
        try:
            if self.pipe.poll(START_LIMIT_S) and self.pipe.recv() == "ready":
                return
        except EOFError:
            pass
        raise _StartFailed(f"a decode worker {self._exit_reason()} before its first request; see stderr")

    def _exit_reason(self) -> str:
        """The reason why a worker closed its pipe; one that still runs is killed. Raises _Killed where the worker was
        ended neither by itself nor by this process."""
        assert self.process is not None
        try:
            returncode = self.process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self.stop_worker()
            return "closed its pipe without an answer"
        if returncode == -signal.SIGKILL and not self.pool.closed.is_set():
            raise _Killed("was killed by SIGKILL")
        if returncode == OUT_OF_MEMORY:
            raise _Killed("ran out of memory")
        if returncode < 0:
            return f"was killed by {signal.Signals(-returncode).name}"
        return f"ended with exit code {returncode}"


class _StartFailed(Exception):
    """A worker cannot start: a fault of the program or its installation, not of a file."""


class _Killed(Exception):
    """A worker was ended for a reason outside the file, for example by the kernel when memory is full."""
