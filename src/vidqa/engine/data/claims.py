"""Claims: if several processes of a node need the same video, one decodes it and the others wait.

A claim is a lock on one byte of a shared file, at an offset computed from the video's cache key. It belongs to the open
file and so to one process: the kernel releases it however that process ends, and nothing is left to clean up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import struct
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from vidqa.core.files import read_json, remove, write_json
from vidqa.core.problem import Problem

FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux: type, whence, start, length, process
HELD = (errno.EAGAIN, errno.EACCES)
POLL_S = 0.02  # seconds between attempts of a waiting process to take a claim


class Claims:
    """Claims on cache keys among all processes that use one folder.

    An owner that fails to decode writes a note with its problem, so that waiting processes do not decode the broken
    file again, and all ranks report the same. `terms` are the settings that a failure depends on: a process with other
    terms ignores the note.
    """

    def __init__(self, folder: Path, terms: str) -> None:
        self.folder, self.terms = folder, terms
        self._handle = os.open(folder / "claims", os.O_RDWR | os.O_CREAT, 0o644)
        weakref.finalize(self, os.close, self._handle)

    def take(self, key: str) -> bool:
        """Try to take a claim; returns whether this process now has it. On a file system without locks it always has:
        videos may then be decoded twice."""
        try:
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, key))
        except OSError as refused:
            return refused.errno not in HELD
        return True

    def release(self, key: str, failed: Problem | None = None) -> None:
        """Release the claim; `failed` is the problem if decoding failed."""
        if failed is not None:
            with suppress(OSError):  # without the note, others try again
                self._note(key).parent.mkdir(exist_ok=True)
                write_json(self._note(key), failed.as_dict())
        with suppress(OSError):
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, key))

    def forget(self, key: str) -> None:
        """Remove the note of an earlier attempt."""
        with suppress(OSError):
            remove(self._note(key), owner=self.folder)

    def failure(self, key: str, where: str) -> Problem | None:
        """The problem in another process's note about the file `where` (another name of the same file has the same
        key), else None."""
        try:
            problem = msgspec.convert(read_json(self._note(key)), Problem)
        except (OSError, ValueError, msgspec.ValidationError):
            return None
        return problem if problem.where == where else None

    def _note(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.{self.terms}.failed"


class Waiting(threading.Thread):
    """A thread that waits for claims of other processes."""

    def __init__(self, claims: Claims) -> None:
        super().__init__(name="claims", daemon=True)
        self._claims = claims
        self._new: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()

    def add(self, key: str, claimed: Callable[[], None]) -> None:
        """Call `claimed` once this process has the claim."""
        self._new.put((key, claimed))

    def close(self) -> None:
        self._new.put(None)
        self.join()

    def run(self) -> None:
        waiting: list[tuple[str, Callable[[], None]]] = []
        while True:
            try:
                new = self._new.get(timeout=POLL_S if waiting else None)
            except queue.Empty:
                pass
            else:
                if new is None:
                    return
                waiting.append(new)
            waiting = [(key, claimed) for key, claimed in waiting if not self._passed_on(key, claimed)]

    def _passed_on(self, key: str, claimed: Callable[[], None]) -> bool:
        if not self._claims.take(key):
            return False
        claimed()
        return True


def _lock(kind: int, key: str) -> bytes:
    place = int(key[:15], 16)  # 60 bits; keys with the same offset only wait for each other
    return FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
