"""Frames for samples: from the cache, or decoded once in worker processes and then cached."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from vidqa.cli import note
from vidqa.data.record import MediaRef
from vidqa.engine.batch.frame_cache import FrameCache
from vidqa.problem import Problem
from vidqa.samples import Sample
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.types import FramePlan

RESIZE = "vidqa.engine.batch.resize:resize_frames"


Awaited = np.ndarray | Future


class FrameSource:
    """`request` starts decoding what is not cached; `collect` waits for it. A medium that is asked for again, also by
    another thread, while it is being decoded is decoded once."""

    def __init__(self, workers: int, timeout_s: float, cache: FrameCache | None) -> None:
        self.pool = DecodePool(max(1, workers), timeout_s, transform=RESIZE)
        self.cache = cache
        self._decoding: dict[DecodeRequest, Future] = {}
        self._lock = threading.Lock()

    def request(self, samples: Sequence[Sample]) -> list[list[Awaited]]:
        """A ticket for `collect`: per sample and medium its frames, or what will give them."""
        return [
            [self._start(ref, plan) for ref, plan in zip(sample.record.media, sample.plans, strict=True)]
            for sample in samples
        ]

    def collect(self, ticket: list[list[Awaited]]) -> tuple[list[list], list[Problem]]:
        """uint8 [n, 3, h, w] per sample and medium, None where decoding failed, and the problems."""
        found = [[item.result() if isinstance(item, Future) else item for item in media] for media in ticket]
        problems = [item for media in found for item in media if isinstance(item, Problem)]
        return [[None if isinstance(item, Problem) else item for item in media] for media in found], problems

    def _start(self, ref: MediaRef, plan: FramePlan) -> Awaited:
        request = DecodeRequest(ref.path, ref.member, ref.kind, plan.indices, plan.height, plan.width)
        with self._lock:
            if request in self._decoding:
                return self._decoding[request]
            cached = self.cache.get(self.cache.key(request)) if self.cache else None
            if cached is not None:
                return cached
            future = self._decoding[request] = self.pool.submit(request)
        future.add_done_callback(partial(self._done, request))
        return future

    def _done(self, request: DecodeRequest, future: Future) -> None:
        """Cache what was decoded; runs in the thread that received it."""
        if self.cache and not future.cancelled() and not future.exception():
            frames = future.result()
            if not isinstance(frames, Problem) and (warning := self.cache.put(self.cache.key(request), frames)):
                note(str(warning))
        with self._lock:
            self._decoding.pop(request, None)

    def close(self) -> None:
        self.pool.close()
