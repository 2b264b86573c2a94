"""The thread that owns the model: it takes requests from a queue and passes them to the generator.

A request with decoded frames overtakes one that is still decoding, so that a slow file delays only its own request.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vidqa.core.problem import Code, Problem, ProblemError
from vidqa.data.record import MediaRef
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.generators._base import Session
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import Planner, Sample
from vidqa.serving.problems import FAILED, STOPPING
from vidqa.video.pool import DecodePool, ProbeRequest


@dataclass(eq=False)
class _Job:
    """A request with its sample. `ticket` is set once its media are being decoded."""

    sample: Sample
    request: Request
    done: Callable[[Result], None]
    ticket: list[list[Any]] = field(default_factory=list)

    def fail(self, code: Code, message: str) -> None:
        self.done(Result(self.request.id, "error", problems=(code.at("server", message),)))


class EngineThread(threading.Thread):
    """A `serving.Backend`. `opened` is set once the model is loaded or failed to load; `ended` is called when
    the thread stops answering."""

    def __init__(
        self,
        open_session: Callable[[], Session],
        planner: Planner,
        source: FrameSource,
        *,
        longest: int,
        batch_size: int,
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self.planner, self.longest, self.batch_size = planner, longest, batch_size
        self.opened = threading.Event()
        self.problems: list[Problem] = []
        self.ended: Callable[[], None] = lambda: None
        self.has_failed = False
        self._open, self._source = open_session, source
        self._probes = DecodePool(1, source.pool.timeout_s)
        self._queue: deque[_Job] = deque()
        self._decoding: list[_Job] = []
        self._running: dict[str, _Job] = {}
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._closing = False

    @property
    def is_answering(self) -> bool:
        return self.is_alive() and self.opened.is_set() and not self._closing

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._decoding)

    def headers(self, media: Sequence[MediaRef]) -> list[Future[Any]]:
        return [self._probes.submit(ProbeRequest(ref.path, ref.member, ref.kind)) for ref in media]

    def submit(self, sample: Sample, request: Request, done: Callable[[Result], None]) -> None:
        job = _Job(sample, request, done)
        with self._lock:
            if not self._closing:
                self._queue.append(job)
                self._wake.set()
                return
        job.fail(STOPPING, "it is ending")

    def run(self) -> None:
        try:
            with closing(self._open()) as session:
                self.opened.set()
                for results in session.generate(self._requests()):
                    for result in results:
                        self._finish(result)
                    if not results:
                        self._wake.wait()
                        self._wake.clear()
        except ProblemError as refused:  # the model cannot be loaded
            self.problems = refused.problems
        finally:
            self._end()

    def close(self) -> None:
        self.stop()
        self.join()
        self._probes.close()

    def stop(self) -> None:
        """Stop: requests in progress end with SERVE_STOPPING."""
        self._closing = True
        self._wake.set()

    def _end(self) -> None:
        with self._lock:
            self.has_failed, self._closing = not self._closing, True
            jobs = [*self._running.values(), *self._decoding, *self._queue]
            for unfinished in (self._running, self._decoding, self._queue):
                unfinished.clear()
        for job in jobs:
            job.fail(FAILED if self.has_failed else STOPPING, "it ended before the answer did")
        self.opened.set()
        self.ended()

    def _requests(self) -> Iterator[Request | None]:
        while not self._closing:
            yield self._next()

    def _next(self) -> Request | None:
        """The first request with decoded frames, if any."""
        with self._lock:
            while self._queue and len(self._decoding) < self.batch_size:
                job = self._queue.popleft()
                self._decoding.append(job)
                job.ticket = self._decode(job)
            for job in list(self._decoding):
                if job.request.cancelled():
                    self._decoding.remove(job)
                    job.done(Result(job.request.id, "cancelled"))
                elif self._source.has(job.ticket):
                    self._decoding.remove(job)
                    self._running[job.request.id] = job
                    cancelled = partial(self._is_cancelled, job)
                    return replace(job.request, frames=partial(self._source.frames, job.ticket), cancelled=cancelled)
        return None

    def _is_cancelled(self, job: _Job) -> bool:
        return self._closing or job.request.cancelled()

    def _decode(self, job: _Job) -> list[Any]:
        """Start decoding the media of a job."""
        ticket = [] if job.request.cancelled() else self._source.request([job.sample])
        for frames in (frames for media in ticket for frames in media if isinstance(frames, Future)):
            frames.add_done_callback(lambda _: self._wake.set())
        return ticket

    def _finish(self, result: Result) -> None:
        with self._lock:
            job = self._running.pop(result.id)
        if self._closing and result.finish_reason == "cancelled":
            job.fail(STOPPING, "it ended before the answer did")
        else:
            job.done(result)
