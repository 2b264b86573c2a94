"""Cache of features of a frozen vision tower: from the second epoch on they are read instead of frames.

Entries are in the folder of the frame cache and count towards its limit. Their names are hashes of the frames' key and
of everything that determines features: the tower's weights and config, precision, patch geometry. So an entry is
never stale, and any number of runs, ranks and attempts may share it. Features are copied and written in the background
of training; if the disk is slower than the tower, some are written in a later epoch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vidqa.core.cli import note
from vidqa.core.problem import ProblemError
from vidqa.data.record import MediaRef
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.engine.data.frames import request_of
from vidqa.engine.data.pixels import as_tensor
from vidqa.engine.loading.safetensors_reader import TYPES, model_tensors, read_part
from vidqa.families import family_of
from vidqa.planning.budget.speed import FlopsModel
from vidqa.video.types import FramePlan

VERSION = 1  # part of every key: increase it when the tower's forward computes other features
PENDING_BYTES = 2 << 30  # limit of features that wait to be written; features beyond it are not cached


@dataclass(frozen=True)
class Features:
    """Features of one medium: [levels, V, D] for V tokens; the tower's output first, then the intermediate levels."""

    values: torch.Tensor


@dataclass(frozen=True)
class CachedFeatures:
    """Features of a pack. `values` are those read from the cache, one tensor per medium; `computed` has key and tokens
    of each medium that goes through the tower, in its order, with an empty key if it is not cached. `saved_flops` are
    the FLOPs of the tower for the features that are read."""

    values: tuple[torch.Tensor, ...]
    computed: tuple[tuple[str, int], ...]
    saved_flops: float
    cache: FeatureCache

    def joined(self, features: torch.Tensor, levels: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Computed and cached features concatenated along V, for the merged features and for each level: [V, D]. The
        computed ones are queued for writing; the tower's black block of a pack without any is dropped."""
        count = sum(tokens for _, tokens in self.computed)
        every = [level[:count] for level in (features, *levels)]
        self.cache.keep(every, self.computed)
        if self.values:
            every = [
                torch.cat([level.to(self.values[0].dtype), *(medium[at] for medium in self.values)])
                for at, level in enumerate(every)
            ]
        return every[0], every[1:]


class FeatureCache:
    """Features by medium. `tower` is the hash of the tower and its precision (`tower_name`). Only `share` of the media
    are cached, selected by their keys, so that all of them fit within the limit and never evict each other. `flops`
    estimates the tower's FLOPs."""

    def __init__(
        self, frames: FrameCache, tower: str, dtype: torch.dtype, levels: int, share: float, flops: FlopsModel
    ) -> None:
        self.frames, self.tower, self.dtype, self.levels, self.share = frames, tower, dtype, levels, share
        self.flops = flops
        self.read = self.kept = 0  # media so far
        self._asked: set[str] = set()  # keys that were queued for writing
        self._pending, self._lock = 0, threading.Lock()
        self._writer = ThreadPoolExecutor(1, "features")

    def key(self, ref: MediaRef, plan: FramePlan) -> str:
        """The cache key of a medium's features; empty if they are not cached."""
        if not (frames := self.frames.key(request_of(ref, plan))):
            return ""
        key = hashlib.sha256(f"{frames} {self.tower} {VERSION}".encode()).hexdigest()
        return key if int(key[:8], 16) < self.share * 2**32 else ""

    def get(self, ref: MediaRef, plan: FramePlan) -> Features | None:
        """A medium's features, mapped from the file, or None."""
        if not (key := self.key(ref, plan)) or (stored := self.frames.get(key)) is None:
            return None
        self.read += 1
        return Features(as_tensor(stored.reshape(self.levels, plan.tokens, -1)).view(self.dtype))

    def keep(self, levels: Sequence[torch.Tensor], media: Sequence[tuple[str, int]]) -> None:
        """Copy the features of media, consecutive rows of every level [V, D], and queue them for writing."""
        size = sum(level.nbytes for level in levels)
        with self._lock:
            new_keys = {key for key, _ in media if key} - self._asked
            if not new_keys or self._pending + size > PENDING_BYTES:
                return
            self._asked |= new_keys
            self._pending += size
        cuda = levels[0].is_cuda
        copies = [torch.empty(level.shape, dtype=self.dtype, pin_memory=cuda) for level in levels]
        for copy, level in zip(copies, levels, strict=True):
            copy.copy_(level, non_blocking=True)
        copied = torch.cuda.Event(blocking=True) if cuda else None
        if copied is not None:
            copied.record()
        job = self._writer.submit(self._write, copies, media, new_keys, copied, size)
        job.add_done_callback(Future.result)  # which logs an exception

    def close(self) -> None:
        """Write the queued features and end the thread."""
        self._writer.shutdown()

    def _write(
        self,
        levels: Sequence[torch.Tensor],
        media: Sequence[tuple[str, int]],
        keys: set[str],
        copied: torch.cuda.Event | None,
        size: int,
    ) -> None:
        """Write the features of the media in `keys`; the levels [V, D] in host memory are complete after the event
        `copied`, and have `size` bytes."""
        if copied is not None:
            copied.synchronize()
        first = 0
        for key, tokens in media:
            if key in keys:
                self._put(key, torch.stack([level[first : first + tokens] for level in levels]))
                keys.remove(key)
            first += tokens
        with self._lock:
            self._pending -= size

    def _put(self, key: str, values: torch.Tensor) -> None:
        """Write one entry. A failure does not end the training: frames can always be decoded."""
        try:
            warning: Any = self.frames.put(key, values.view(torch.uint8).numpy())
        except ProblemError as failed:
            warning, self.share = failed, 0.0
        if warning:
            note(f"features of the vision tower are kept no more: {warning}")
        self.kept += not warning


def tower_name(folder: Path, *settings: object) -> str:
    """A hash of the vision tower's weights in a model folder, of the model's config, and of settings that change the
    tower's output. Reads the weights (1.2 GB for the 8B model). Raises as `model_tensors` does."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update((folder / "config.json").read_bytes() + repr(settings).encode())
    names, tower = {dtype: name for name, dtype in TYPES.items()}, family_of(folder).tower
    for name, stored in sorted(model_tensors(folder).items()):
        if name.startswith(tower):
            digest.update(f"{name} {names[stored.dtype]} {stored.shape}".encode())
            digest.update(read_part(stored, 0, stored.shape[0]).flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
