"""Cache of resized frames on disk for all processes of a node: a video is decoded once for all questions and epochs.

An entry is a .npy file of uint8 frames followed by its checksum, published by rename and read through a memory map.
Its name is a hash of everything its pixels depend on, so an entry is never stale, only unused.
"""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import math
import os
import stat
import struct
import time
import tokenize
import zlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from vidqa.core.cli import FILE_REFUSED
from vidqa.core.files import ends_of, remove
from vidqa.core.locks import locked
from vidqa.core.problem import Problem
from vidqa.video.pool import DecodeRequest

RESIZE_VERSION = 3  # part of every key: increase it when decoding or resize_frames computes other pixels
FOOTER = struct.Struct("<4sI")  # a marker, and the CRC-32 of everything before it
MARK = b"vqF1"
TOTAL, TOTAL_DIGITS = "total", 32  # the file with the total size in bytes, locked among all processes
ROOM = 0.9  # an eviction frees down to this share of the limit, so that not every put evicts
ABANDONED_S = 3600.0  # seconds; an older temporary file belongs to a process that was killed
LOCK_WAIT_S = 600.0  # seconds; an eviction by another process reads the metadata of every entry
OTHER_CACHE = "free space, set VIDQA_CACHE_DIR to a folder on another disk, or lower the cache limit"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FrameCache:
    """Frames by key, at most `limit_bytes` on disk; the least recently used entries are evicted first.

    Any number of processes of one machine may use one folder. An entry that is evicted while another process has it
    mapped stays readable there, since Linux keeps the data of an unlinked file until its last mapping is closed.
    Raises ENV_FILE_REFUSED if the folder cannot be written.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._trusted: dict[str, int] = {}  # the inode of each key whose checksum this process has verified
        self._numbers = itertools.count()  # distinguishes the temporary files of this process
        self._full = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / TOTAL, wait_s=LOCK_WAIT_S):
                pass
        except OSError as failed:
            raise FILE_REFUSED.error(folder, f"it cannot be written: {failed.strerror}", OTHER_CACHE) from failed

    def key(self, request: DecodeRequest) -> str | None:
        """The cache key of a request's frames; None if the file cannot be read, which decoding will report.

        Covers the file (size, modification time, hash of its first and last MiB), member, kind, frame numbers, size
        and the version of the resize.
        """
        try:
            status = os.stat(request.path)
            if not stat.S_ISREG(status.st_mode):
                return None
            content = _content_hash(request.path, status.st_size, status.st_mtime_ns)
        except (OSError, ValueError):
            return None
        parts = (content, request.member, request.kind, request.indices, request.height, request.width, RESIZE_VERSION)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def get(self, key: str | None) -> np.ndarray | None:
        """The frames, read-only and memory-mapped, or None. A damaged entry is removed and counts as absent."""
        if key is None:
            return None
        path = self._path(key)
        try:
            frames = self._mapped(key, path)
            now = time.time_ns()  # the time of last use, finer than the file system's own clock
            with suppress(PermissionError):  # an entry of another user is just as valid
                os.utime(path, ns=(now, now))
        except (OSError, RuntimeError):  # absent, or evicted between two of these steps, or no room for a mapping
            return None
        except ValueError:  # damaged
            with suppress(OSError):
                remove(path, owner=self.folder)
            return None
        return frames

    def takes(self, request: DecodeRequest) -> bool:
        """Whether the frames of this request would be stored."""
        return not self._full and len(request.indices) * 3 * request.height * request.width <= self.limit_bytes

    def put(self, key: str | None, frames: np.ndarray) -> Problem | None:
        """Store uint8 frames, evicting others if necessary. Frames larger than the limit are not stored.

        Returns the warning ENV_FILE_REFUSED when the disk is full; nothing is stored after that.
        """
        if key is None or self._full or frames.nbytes > self.limit_bytes:
            return None
        temporary = self.temporary(key)
        try:
            write_entry(temporary, frames)
            self._publish(temporary, self._path(key))
        except OSError as failed:
            return self._refused(failed)
        finally:
            with suppress(OSError):
                remove(temporary, owner=self.folder)
        return None

    def temporary(self, key: str) -> Path:
        """The path of a temporary file for `write_entry`, perhaps in another process, and then `adopt`."""
        path = self._path(key)
        return path.with_name(f"{path.name}.{os.getpid()}.{next(self._numbers)}.tmp")

    def adopt(self, key: str, temporary: Path) -> tuple[np.ndarray, Problem | None]:
        """Publish the entry that `write_entry` has written at `temporary` under `key`. Returns its frames, mapped,
        which stay readable even if the entry is evicted at once, and the warning that `put` may return."""
        try:
            frames = self._mapped(key, temporary, trusted=True)
            try:
                self._publish(temporary, self._path(key))
            except OSError as failed:
                return frames, self._refused(failed)
        finally:
            with suppress(OSError):
                remove(temporary, owner=self.folder)
        return frames, None

    def _refused(self, failed: OSError) -> Problem:
        """A warning if the disk is full, which the run survives; any other error is raised."""
        if failed.errno not in NO_SPACE:
            raise FILE_REFUSED.error(self.folder, f"it cannot be written: {failed.strerror}", OTHER_CACHE) from failed
        self._full = True
        message = f"{failed.strerror}; from now on frames are decoded every time"
        return FILE_REFUSED.at(self.folder, message, OTHER_CACHE, severity="warning")

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"

    def _mapped(self, key: str, path: Path, *, trusted: bool = False) -> np.ndarray:
        """Map the entry's frames; raises ValueError if its length or (once per process) its checksum is wrong."""
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            start, shape = _read_header(file, status.st_size)
            # Mapped by descriptor: it is this very file; torch's mapping, unlike Python's, keeps no descriptor open.
            whole = torch.from_file(f"/proc/self/fd/{file.fileno()}", size=status.st_size, dtype=torch.uint8).numpy()
        whole.flags.writeable = False
        if not trusted and self._trusted.get(key) != status.st_ino:
            _verify(whole, path)
        self._trusted[key] = status.st_ino
        return whole[start : -FOOTER.size].reshape(shape)

    def _publish(self, temporary: Path, path: Path) -> None:
        size = temporary.stat().st_size
        with locked(self.folder / TOTAL, wait_s=LOCK_WAIT_S) as handle:
            written = os.pread(handle, TOTAL_DIGITS, 0)
            # The file is empty in a new cache, and empty or NULs after a power cut: then the entries are counted.
            sound = len(written) == TOTAL_DIGITS and written.isdigit()
            total = int(written) if sound else self._evict(math.inf)
            if path.exists():  # another process decoded the same frames
                return
            if total + size > self.limit_bytes:
                total = self._evict(self.limit_bytes * ROOM - size)
            # Counted first: a process that dies in between leaves too high a total, which the next eviction corrects.
            os.pwrite(handle, f"{total + size:0{TOTAL_DIGITS}d}".encode(), 0)
            os.replace(temporary, path)

    def _evict(self, allowed: float) -> int:
        """Remove the least recently used entries until at most `allowed` bytes are left; returns the bytes left."""
        entries = []
        for file in self.folder.glob("*/*"):
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            if file.suffix == ".npy":
                entries.append((status.st_mtime_ns, status.st_size, file))
            elif time.time() - status.st_mtime > ABANDONED_S:
                remove(file, owner=self.folder)
        left = sum(size for _, size, _ in entries)
        for _, size, file in sorted(entries):
            if left <= allowed:
                break
            remove(file, owner=self.folder)
            left -= size
        return left


def write_entry(path: str | Path, frames: np.ndarray) -> None:
    """Write uint8 frames as a cache entry; decode workers call it too. Raises OSError, leaving no file."""
    Path(path).parent.mkdir(exist_ok=True)
    try:
        with open(path, "wb") as file:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(frames))
            body = np.ascontiguousarray(frames).reshape(-1).data
            file.write(header.getvalue())
            file.write(body)
            file.write(FOOTER.pack(MARK, zlib.crc32(body, zlib.crc32(header.getvalue()))))
    except OSError:
        with suppress(OSError):
            remove(Path(path), owner=Path(path).parent)
        raise


def _read_header(file: BinaryIO, size: int) -> tuple[int, tuple[int, ...]]:
    """The byte offset of the frames and their shape. Raises ValueError for a damaged header or a truncated file."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{file.name} is not an entry")
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except (SyntaxError, tokenize.TokenError) as damaged:
        raise ValueError(f"the header of {file.name} is damaged") from damaged
    if dtype != np.uint8 or size != file.tell() + math.prod(shape) + FOOTER.size:
        raise ValueError(f"{file.name} is truncated")
    return file.tell(), shape


def _verify(whole: np.ndarray, path: Path) -> None:
    mark, checksum = FOOTER.unpack(whole[-FOOTER.size :].tobytes())
    if mark != MARK or zlib.crc32(whole[: -FOOTER.size].data) != checksum:
        raise ValueError(f"{path} is damaged")


@lru_cache(maxsize=100_000)
def _content_hash(path: str, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256(f"{size} {mtime_ns} ".encode())
    digest.update(ends_of(path, size))
    return digest.hexdigest()
