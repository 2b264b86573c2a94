"""Frames for samples: from the cache, or decoded once in worker processes and then cached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.core.cli import note
from vidqa.core.environment import cache_folder
from vidqa.core.files import remove
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.data.record import MediaRef
from vidqa.engine.data.claims import Claims, Waiting
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.planning.samples import Sample
from vidqa.spec.run_tables import DecodeEngine
from vidqa.video.pool import Decoded, DecodePool, DecodeRequest, FramesFile
from vidqa.video.types import FramePlan

RESIZE = "vidqa.engine.data.pixels:resize_frames"
STORE = "vidqa.engine.data.frame_cache:write_entry"

CacheLookup = Callable[[MediaRef, FramePlan], Any]


@contextmanager
def open_frames(engine: DecodeEngine, workers: int) -> Iterator[FrameSource]:
    """Open a FrameSource with its frame cache, by the spec's [engine] table."""
    cache = None
    if engine.frame_cache_gb:
        folder = Path(engine.frame_cache_dir) if engine.frame_cache_dir else cache_folder() / "frames"
        cache = FrameCache(folder, int(engine.frame_cache_gb * 1024**3))
    with closing(FrameSource(workers, engine.decode_timeout_s, cache)) as source:
        yield source


def request_of(ref: MediaRef, plan: FramePlan) -> DecodeRequest:
    """The decode request for the planned frames of a medium."""
    return DecodeRequest(ref.path, ref.member, ref.kind, plan.indices, plan.height, plan.width)


@dataclass(frozen=True, eq=False)
class _Pending:
    """A medium that is not cached: `answer` resolves to its frames or to a Problem."""

    request: DecodeRequest
    key: str
    answer: Future[Decoded] = field(default_factory=Future)


class FrameSource:
    """The source of decoded frames: `request` starts decoding media that are not cached; `collect` waits for them.

    A medium is decoded once, for this process and for all others that share the cache. The worker writes decoded frames
    into the cache, and this process maps them: waiting frames take none of its memory. Without a cache they come
    through the worker's pipe and are held in memory.
    """

    def __init__(self, workers: int, timeout_s: float, cache: FrameCache | None) -> None:
        self.pool = DecodePool(max(1, workers), timeout_s, transform=RESIZE, store=STORE)
        self.cache = cache
        self._pending: dict[DecodeRequest, _Pending] = {}
        self._lock = threading.Lock()
        self._closing = False
        if cache:
            self._claims = Claims(cache.folder, terms=f"{timeout_s:g}s")
            self._waiting = Waiting(self._claims)
            self._waiting.start()

    def request(self, samples: Sequence[Sample], lookup: CacheLookup | None = None) -> list[list[Any]]:
        """Request frames. Returns a ticket for `collect`: per sample and medium its frames or a future of them. A
        result of `lookup` for a medium replaces its frames."""
        return [
            [
                (lookup and lookup(ref, plan)) or self._start(ref, plan)
                for ref, plan in zip(s.record.media, s.plans, strict=True)
            ]
            for s in samples
        ]

    def has(self, ticket: list[list[Any]]) -> bool:
        """Whether `collect` would return without waiting."""
        return all(item.done() for media in ticket for item in media if isinstance(item, Future))

    def collect(self, ticket: list[list[Any]]) -> tuple[list[list], list[Problem]]:
        """Wait for frames: uint8 [n, 3, h, w] per sample and medium, None if decoding failed, and the problems."""
        results = [[item.result() if isinstance(item, Future) else item for item in media] for media in ticket]
        problems = [item for media in results for item in media if isinstance(item, Problem)]
        return [[None if isinstance(item, Problem) else item for item in media] for media in results], problems

    def frames(self, ticket: list[list[Any]]) -> list[np.ndarray]:
        """The frames of one sample, uint8 [n, 3, h, w] per medium. Empties the ticket, so that a caller who keeps it
        does not keep the frames. Raises the problems of media that cannot be decoded."""
        (frames,), problems = self.collect(ticket)
        ticket.clear()
        if problems:
            raise ProblemError(problems)
        return frames

    def close(self) -> None:
        """Stop at once and cancel the pending requests."""
        self._closing = True
        if self.cache:
            self._waiting.close()
        self.pool.close()
        for pending in list(self._pending.values()):
            self._end(pending, pending.answer.cancel)

    def _start(self, ref: MediaRef, plan: FramePlan) -> np.ndarray | Future[Decoded]:
        request = request_of(ref, plan)
        key = self.cache.key(request) if self.cache else None
        if self.cache and (cached := self.cache.get(key)) is not None:
            return cached
        with self._lock:
            if request in self._pending:
                return self._pending[request].answer
            pending = self._pending[request] = _Pending(request, key or "")
        self._decode(pending, claimed=False)
        return pending.answer

    def _decode(self, pending: _Pending, *, claimed: bool) -> None:
        store_at = ""
        if self.cache and pending.key and self.cache.takes(pending.request):
            store_at = str(self.cache.temporary(pending.key))
        admit = None if claimed or not pending.key else partial(self._admit, pending)
        future = self.pool.submit(pending.request, store_at=store_at, admit=admit)
        future.add_done_callback(partial(self._decoded, pending, store_at))

    def _admit(self, pending: _Pending) -> bool:
        """Whether a free worker should decode it: not if another process is decoding it or has just done so."""
        assert self.cache
        if not self._claims.take(pending.key):
            self._waiting.add(pending.key, partial(self._claimed, pending))
            return False
        if (cached := self.cache.get(pending.key)) is not None:
            self._settle(pending, cached)
            return False
        self._claims.forget(pending.key)
        return True

    def _claimed(self, pending: _Pending) -> None:
        """Continue after another process has ended its attempt: with frames, with a problem, or by dying."""
        assert self.cache
        result: Decoded | None = self.cache.get(pending.key)
        if result is None:
            result = self._claims.failure(pending.key, pending.request.where)
        if result is None:
            self._decode(pending, claimed=True)
        else:
            self._settle(pending, result)

    def _decoded(self, pending: _Pending, store_at: str, future: Future) -> None:
        """Handle a worker's result; runs in a thread of the pool."""
        if future.cancelled():  # not admitted, or the pool is closed
            return
        try:
            self._settle(pending, self._adopt(pending, store_at, future.result()))
        except Exception as failed:  # noqa: BLE001  raised again by `collect`
            self._end(pending, partial(pending.answer.set_exception, failed))

    def _adopt(self, pending: _Pending, store_at: str, result: Decoded | FramesFile) -> Decoded:
        """Put the frames of a worker's result into the cache and return them, or return its problem."""
        warning = None
        if isinstance(result, FramesFile):
            assert self.cache
            result, warning = self.cache.adopt(pending.key, Path(result.path))
        elif store_at:  # a worker that was killed may have left a partial file
            assert self.cache
            with suppress(OSError):
                remove(Path(store_at), owner=self.cache.folder)
            if not isinstance(result, Problem):
                warning = self.cache.put(pending.key, result)
        if warning:
            note(str(warning))
        return result

    def _settle(self, pending: _Pending, result: Decoded) -> None:
        failed = result if isinstance(result, Problem) and not self._closing else None
        if failed and failed.exit_code != Exit.INPUT:  # the machine failed, not the file: other processes may decode it
            failed = None
        self._end(pending, partial(pending.answer.set_result, result), failed)

    def _end(self, pending: _Pending, answer: Callable[[], object], failed: Problem | None = None) -> None:
        """Answer all waiters: in this process by the future, in other processes by the claim."""
        if self.cache and pending.key:
            self._claims.release(pending.key, failed)
        answer()
        with self._lock:
            self._pending.pop(pending.request, None)
