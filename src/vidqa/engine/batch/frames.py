"""Frames for samples: from the cache, or decoded once in worker processes and then cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vidqa.data.record import MediaRef
from vidqa.engine.batch.frame_cache import FrameCache
from vidqa.problem import Problem
from vidqa.samples import Sample
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.types import FramePlan

RESIZE = "vidqa.engine.batch.resize:resize_frames"


class FrameSource:
    """`request` starts decoding what is not cached; `collect` waits for it. One medium asked for several times at once
    is decoded once."""

    def __init__(self, workers: int, timeout_s: float, cache: FrameCache | None) -> None:
        self.pool = DecodePool(workers, timeout_s, transform=RESIZE)
        self.cache = cache
        self._pending: dict[Any, tuple[Any, int]] = {}  # key -> (future, how many wait for it)

    def request(self, samples: Sequence[Sample]) -> list[list[tuple[Any, np.ndarray | None]]]:
        """A ticket for `collect`: per sample and medium its key, and its frames where the cache has them."""
        return [
            [self._start(ref, plan) for ref, plan in zip(sample.record.media, sample.plans, strict=True)]
            for sample in samples
        ]

    def collect(self, ticket: list[list[tuple[Any, np.ndarray | None]]]) -> tuple[list[list], list[Problem]]:
        """uint8 [n, 3, h, w] per sample and medium, None where decoding failed, and the problems."""
        problems: list[Problem] = []
        frames = [[self._finish(key, ready, problems) for key, ready in media] for media in ticket]
        return frames, problems

    def _start(self, ref: MediaRef, plan: FramePlan) -> tuple[Any, np.ndarray | None]:
        request = DecodeRequest(ref.path, ref.member, ref.kind, plan.indices, plan.height, plan.width)
        if request in self._pending:
            future, waiting = self._pending[request]
            self._pending[request] = (future, waiting + 1)
            return request, None
        cached = self.cache.get(self.cache.key(request)) if self.cache else None
        if cached is None:
            self._pending[request] = (self.pool.submit(request), 1)
        return request, cached

    def _finish(self, request: Any, ready: np.ndarray | None, problems: list[Problem]) -> np.ndarray | None:
        if ready is not None:
            return ready
        future, waiting = self._pending[request]
        result = future.result()
        if waiting > 1:
            self._pending[request] = (future, waiting - 1)
        else:
            del self._pending[request]
            if self.cache and not isinstance(result, Problem):
                self.cache.put(self.cache.key(request), result)
        if isinstance(result, Problem):
            problems.append(result)
            return None
        return result

    def close(self) -> None:
        self.pool.close()
