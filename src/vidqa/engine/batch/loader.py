"""Batches ahead of time: a thread decodes and collates the next micro-steps while the model computes this one."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vidqa.engine.batch.collate import Batch, Collator
from vidqa.engine.batch.frames import FrameSource
from vidqa.problem import Problem
from vidqa.samples import Sample

DECODE_AHEAD = 8  # micro-steps whose media are being decoded
READY_AHEAD = 2  # finished batches that wait for the model


@dataclass(frozen=True)
class Loaded:
    """One micro-step's batch and what could not be decoded for it."""

    batch: Batch
    problems: list[Problem]


class Loader:
    """Turns a stream of packs (sample numbers) into batches on `device`. Use as an iterator inside `with`."""

    def __init__(
        self,
        packs: Iterable[Sequence[int]],
        samples: Sequence[Sample],
        source: FrameSource,
        collator: Collator,
        device: torch.device,
    ) -> None:
        self._packs, self._samples, self._source, self._collator = iter(packs), samples, source, collator
        self._device = device
        self._ready: queue.Queue[Any] = queue.Queue(READY_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)

    def __enter__(self) -> Iterator[Loaded]:
        self._thread.start()
        return self._batches()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.1)  # a thread that waits for room in the queue must get it
            except queue.Empty:
                continue

    def _batches(self) -> Iterator[Loaded]:
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _work(self) -> None:
        try:
            for loaded in self._load():
                if self._stopped.is_set():
                    return
                self._ready.put(loaded)
            self._ready.put(None)
        except BaseException as failed:  # noqa: BLE001  handed to the thread that trains, which raises it
            self._ready.put(failed)

    def _load(self) -> Iterator[Loaded]:
        waiting: deque[tuple[Sequence[int], Any]] = deque()
        for numbers in self._packs:
            waiting.append((numbers, self._source.request([self._samples[i] for i in numbers])))
            if len(waiting) > DECODE_AHEAD:
                yield self._collate(*waiting.popleft())
        while waiting:
            yield self._collate(*waiting.popleft())

    def _collate(self, numbers: Sequence[int], ticket: Any) -> Loaded:
        frames, problems = self._source.collect(ticket)
        batch = self._collator(numbers, [self._samples[i] for i in numbers], frames)
        return Loaded(batch.to(self._device), problems)
