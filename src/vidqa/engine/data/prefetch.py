"""Prefetching of batches: decoding runs far ahead of the model, collating and copying a little.

Both are bounded by bytes, not by counts: short clips are requested many steps ahead, so that decode workers stay
busy across steps, and long clips do not fill the memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch

from vidqa.core.problem import Problem
from vidqa.engine.data.collate import Batch, Collator
from vidqa.engine.data.feature_cache import FeatureCache, Features
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.host_to_device import BatchSender, SentBatch
from vidqa.planning.feature_cache import frame_bytes, plans_by_view
from vidqa.planning.samples import Sample

DECODE_AHEAD = 1 << 30  # bytes of frames that are requested and not yet collated
READY_AHEAD = 256 << 20  # bytes of finished batches that wait for the model; one batch is always allowed
# Minimum size of a pack and of a medium in the window, which bounds the number of packs and of mapped files.
PACK_AT_LEAST = DECODE_AHEAD // 64
MEDIUM_AT_LEAST = DECODE_AHEAD // 4096


@dataclass(frozen=True)
class LoadedBatch:
    """The batch of one micro-step and the problems of media that could not be decoded for it."""

    batch: Batch
    problems: list[Problem]


@dataclass(frozen=True)
class _Requested:
    """A pack whose media are being decoded."""

    numbers: Sequence[int]
    samples: list[Sample]
    ticket: Any
    size: int


class Prefetcher:
    """An iterator, used inside `with`, that turns a stream of packs (sample numbers) into batches on `device`.

    It runs in one thread: collating a pack takes some milliseconds, decoding runs in other processes. Its exit waits
    for no decoding. Media with cached `features` are not decoded.
    """

    def __init__(
        self,
        packs: Iterable[Sequence[int]],
        samples: Sequence[Sample],
        source: FrameSource,
        collator: Collator,
        device: torch.device,
        features: FeatureCache | None = None,
    ) -> None:
        self._features = features
        self._packs, self._samples, self._source, self._collator = iter(packs), samples, source, collator
        self._staging = BatchSender(device)
        self._ready, self._closing = BoundedQueue(READY_AHEAD), Future[None]()
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)

    def __enter__(self) -> Iterator[LoadedBatch]:
        self._thread.start()
        return self._batches()

    def __exit__(self, *_: object) -> None:
        self._closing.set_result(None)
        self._ready.close()
        self._thread.join()

    def _batches(self) -> Iterator[LoadedBatch]:
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            sent, problems = item
            yield LoadedBatch(sent.received(), problems)

    def _work(self) -> None:
        try:
            for sent, problems in self._load():
                if not self._ready.put((sent, problems), sent.area.nbytes):
                    return
            self._ready.put(None, 0)
        except BaseException as failed:  # noqa: BLE001  raised again in the training thread
            self._ready.put(failed, 0)

    def _load(self) -> Iterator[tuple[SentBatch, list[Problem]]]:
        requested: deque[_Requested] = deque()
        ahead = 0
        for pack in self._packs:
            requested.append(self._ask(pack))
            ahead += requested[-1].size
            # If the model is waiting, collate the next pack as soon as it is decoded; otherwise fill the window first.
            while ahead > DECODE_AHEAD or (
                requested and self._ready.is_empty() and self._source.has(requested[0].ticket)
            ):
                ahead -= requested[0].size
                yield self._collated(requested.popleft())
        while requested:
            yield self._collated(requested.popleft())

    def _ask(self, numbers: Sequence[int]) -> _Requested:
        samples = [self._samples[i] for i in numbers]
        lookup = self._features.get if self._features else None
        return _Requested(numbers, samples, self._source.request(samples, lookup), pack_bytes(samples))

    def _collated(self, requested: _Requested) -> tuple[SentBatch, list[Problem]]:
        for medium in (medium for media in requested.ticket for medium in media if isinstance(medium, Future)):
            wait([medium, self._closing], return_when=FIRST_COMPLETED)
        if self._closing.done():
            raise CancelledError
        frames, problems = self._source.collect(requested.ticket)
        return self._staging.send(self._batch(requested, frames)), problems

    def _batch(self, requested: _Requested, frames: list[list]) -> Batch:
        """Collate a pack. Features that were cached after the request replace its frames."""
        if self._features:
            frames = [
                [
                    medium if isinstance(medium, Features) else (self._features.get(ref, plan) or medium)
                    for ref, plan, medium in zip(sample.record.media, sample.plans, of_sample, strict=True)
                ]
                for sample, of_sample in zip(requested.samples, frames, strict=True)
            ]
        return self._collator(requested.numbers, requested.samples, frames, self._features)


def pack_bytes(samples: Sequence[Sample]) -> int:
    """The size in bytes of a pack in the decode window; several questions about one video share its frames."""
    return max(PACK_AT_LEAST, sum(media_bytes(samples).values()))


def media_bytes(samples: Iterable[Sample]) -> dict[Hashable, int]:
    """The size in bytes of the decoded frames of each medium, by its view; at least MEDIUM_AT_LEAST."""
    return {view: max(MEDIUM_AT_LEAST, frame_bytes([plan])) for view, plan in plans_by_view(samples).items()}


def decode_ahead(samples: Iterable[Sample], source: FrameSource) -> Iterator[tuple[Sample, Any]]:
    """Yield samples with the tickets of their frames, which are decoded up to DECODE_AHEAD bytes ahead. Decoding of the
    first ones starts now: before the first is taken, and usually before a model is loaded."""
    ahead = _decode_ahead(samples, source)
    return chain(list(islice(ahead, 1)), ahead)


def _decode_ahead(samples: Iterable[Sample], source: FrameSource) -> Iterator[tuple[Sample, Any]]:
    window: deque[tuple[Sample, Any, int]] = deque()
    ahead, previous = 0, dict[Hashable, int]()
    for sample in samples:
        media = media_bytes([sample])
        # Questions about one video follow each other and share its frames.
        size = max(MEDIUM_AT_LEAST, sum(size for view, size in media.items() if view not in previous))
        window.append((sample, source.request([sample]), size))
        ahead, previous = ahead + size, media
        while ahead > DECODE_AHEAD and len(window) > 1:
            first, ticket, size = window.popleft()
            ahead -= size
            yield first, ticket
    for sample, ticket, _ in window:
        yield sample, ticket


class BoundedQueue:
    """A queue between two threads, bounded by the sum of the sizes that are passed with its items."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: deque[tuple[Any, int]] = deque()
        self._held = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: Any, size: int) -> bool:
        """Wait for room (an empty queue always has room) and add the item. Returns False if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._items or self._held + size <= self.limit)
            if self._closed:
                return False
            self._items.append((item, size))
            self._held += size
            self._changed.notify_all()
        return True

    def get(self) -> Any:
        """Wait for an item, and remove and return the oldest."""
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            item, size = self._items.popleft()
            self._held -= size
            self._changed.notify_all()
        return item

    def is_empty(self) -> bool:
        return not self._items

    def close(self) -> None:
        """Drop all items, and release a thread that waits in `put`."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
