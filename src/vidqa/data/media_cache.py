"""The cache of media, limited by disk space: members of compressed archives that records name, and media that a table
holds as bytes, as Video and Image columns of Hugging Face do.

archives/KEY/index.json   of an archive: number and size of every plain file among its members
archives/KEY/members/     the members named so far; of a table, files named by content hash, so that rows share them
archives/KEY.lock         held while the two are written
archives/KEY.used         held by every process that may read the members, until it ends; touched when it starts
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from vidqa.core.environment import cache_folder
from vidqa.core.files import content_hash, remove, replacing, write_json
from vidqa.core.locks import POLL_S, locked, try_lock
from vidqa.data.foreign_rows import with_media
from vidqa.data.problems import DISK_SPACE

LOCK_WAIT_S = 6 * 3600.0  # for another process that reads the same archive, which may have terabytes
INDEX, MEMBERS, PARTIAL = "index.json", "members", "partial"
SHARE = 0.5  # limit of all unpacked members, as a share of the disk space that is free without them
MAX_MEMBERS = 1_000_000
# Expansion limit of a compressed archive. Members that no record names count: they are decompressed, too, to skip them.
MAX_EXPANSION = 100  # times its size
ALWAYS_ALLOWED_BYTES = 1 << 30  # also of a small archive
LONGEST_NAME = 1 << 20  # bytes; names, and other data in extra headers, are read into memory
PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
GNU = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
BLOCK = 1 << 20
RESERVED_AT_ONCE = 64 << 20
NAMED = 24  # characters of a content's hash in a name


class _Header(tarfile.TarInfo):
    """A member's header, limited to a size that fits in memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type in (*PAX, *GNU) and header.size > LONGEST_NAME:
            raise tarfile.ReadError(f"a name of {header.size} bytes")
        return header


def plain_members(tar: tarfile.TarFile, size: int) -> Iterator[tuple[int, str, tarfile.TarInfo]]:
    """Yield (number, name without `./`, member) of each plain file of an archive of `size` bytes; no paths outside."""
    number, most = 0, max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size)
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # a TarFile would keep all of them in memory
        if number >= MAX_MEMBERS:
            raise tarfile.ReadError(f"it has more than {MAX_MEMBERS:,} members")
        if member.offset_data + member.size > most:
            raise tarfile.ReadError(f"its {size:,} bytes expand to more than {most:,}")
        parts = PurePosixPath(member.name).parts
        plain = member.isreg() and not member.issparse()
        if plain and parts and not member.name.startswith("/") and ".." not in parts:
            yield number, "/".join(parts), member
        number += 1


def open_tar(path: Path) -> tarfile.TarFile:
    """Open a tar, compressed unless its name ends in .tar. Raises errors of tarfile, also for headers and numbers of
    members that do not fit in memory."""
    is_plain = path.name.lower().endswith(".tar")
    return tarfile.open(path, "r:" if is_plain else "r:gz", tarinfo=_Header)


class Unpacked:
    """The cache folder of one compressed archive. No process evicts it before this one has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = cache_folder() / "archives" / content_hash(path)[:32]
        in_use(self.folder)
        self.lock = self.folder.with_suffix(".lock")  # of ranks that start together one unpacks, the others wait
        with locked(self.lock, wait_s=LOCK_WAIT_S):
            index = _read_index(self.folder / INDEX)
            if index is None:  # not here yet, or left by a process that was killed
                remove(self.folder, owner=self.folder.parent)
                with open_tar(path) as tar:
                    members = plain_members(tar, path.stat().st_size)
                    index = {name: (number, member.size) for number, name, member in members}
                write_json(self.folder / INDEX, index, indent=None)
        self._index = index

    def sizes(self) -> dict[str, int]:
        """Bytes of every plain file, by name."""
        return {name: size for name, (_, size) in self._index.items()}

    def path_of(self, name: str) -> str:
        """The path of a member, whether or not it is unpacked."""
        return f"{self.folder}/{MEMBERS}/{name}"

    def unpack(self, names: Iterable[str]) -> None:
        """Write these members to their paths; a file appears only when it is complete. Raises ENV_DISK_SPACE, and
        errors of tarfile and the disk."""
        with locked(self.lock, wait_s=LOCK_WAIT_S):
            due = {self._index[name][0]: name for name in names if not self._is_unpacked(name)}
            if not due:
                return
            make_room(self.folder, sum(self._index[name][1] for name in due.values()), self.path)
            partial = self.folder / PARTIAL
            try:
                with open_tar(self.path) as tar:
                    for number, _, member in plain_members(tar, self.path.stat().st_size):
                        if number in due:
                            _write(tar, member, partial)
                            target = Path(self.path_of(due.pop(number)))
                            target.parent.mkdir(parents=True, exist_ok=True)
                            os.replace(partial, target)
                        if not due:
                            break
            finally:
                remove(partial, owner=self.folder)

    def _is_unpacked(self, name: str) -> bool:
        try:
            return os.stat(self.path_of(name)).st_size == self._index[name][1]
        except OSError:
            return False


def make_room(own: Path, needed: int, source: Path) -> None:
    """Evict the least recently used folders until `needed` bytes of `source` fit into the folder `own` beside the
    rest. Raises ENV_DISK_SPACE."""
    root = own.parent
    held = {folder: _bytes_below(folder) for folder in root.iterdir() if folder.is_dir()}
    total, free = sum(held.values()), shutil.disk_usage(root).free
    limit = int(SHARE * (free + total))
    for folder in sorted(held, key=_last_used):
        if total + needed <= limit:
            return
        if folder != own and _evict(folder):
            total -= held[folder]
    if total + needed > limit:
        message = (
            f"the records need {needed / 1e6:,.1f} MB more of it, {total / 1e6:,.1f} MB of archives in use are "
            f"unpacked in {root}; together they may take {limit / 1e6:,.1f} MB, half of that disk's free space"
        )
        raise DISK_SPACE.error(source, message)


@cache
def in_use(folder: Path) -> int:
    """Keep a folder from being evicted until this process ends. Returns the open file that holds the lock."""
    path = folder.with_suffix(".used")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    while not try_lock(handle, path, shared=True):  # held by an eviction, which is short
        time.sleep(POLL_S)
    os.utime(handle)
    return handle


def _evict(folder: Path) -> bool:
    """Remove the folder unless a running process uses it. Return whether it was removed."""
    with folder.with_suffix(".used").open("a") as handle:
        if not try_lock(handle.fileno(), folder.with_suffix(".used")):
            return False
        remove(folder, owner=folder.parent)
    return True


def _last_used(folder: Path) -> float:
    used = folder.with_suffix(".used")
    return used.stat().st_mtime if used.exists() else 0.0


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # another process has renamed it, or evicts it
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _read_index(path: Path) -> dict[str, tuple[int, int]] | None:
    """The index written by an earlier process; None where it is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[int, int]])
    except (OSError, ValueError, RecursionError):
        return None


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None  # a plain file has content
    with content, target.open("wb") as out:
        shutil.copyfileobj(content, out, BLOCK)
    with suppress(OverflowError, OSError):  # caches by mtime stay valid when it is unpacked again
        os.utime(target, (member.mtime, member.mtime))


class EmbeddedMedia:
    """The cache folder of one table's media, by the table's `key`. `elsewhere` is the folder to which paths without
    bytes are relative."""

    def __init__(self, key: str, elsewhere: Path) -> None:
        self.home = cache_folder() / "archives" / key
        self.folder = self.home / MEMBERS
        self.elsewhere = elsewhere
        self._room = 0  # bytes that may be written before the next call of make_room

    def unpacked(self, row: Any) -> Any:
        """Write the media of a row to files, and return the row with their names. Raises ENV_DISK_SPACE."""
        return with_media(row, self._named) if isinstance(row, dict) else row

    def _named(self, value: Any) -> Any:
        if isinstance(value, bytes):
            value = {"bytes": value}
        if not isinstance(value, dict):
            return self._beside(value)
        content, path = value.get("bytes"), value.get("path")
        if not isinstance(content, bytes):
            return self._beside(path) if path else value
        ending = Path(path).suffix if isinstance(path, str) else ""
        name = hashlib.sha256(content).hexdigest()[:NAMED] + ending.lower()
        target = self.folder / name
        try:
            in_use(self.home)
            if not target.is_file() or target.stat().st_size != len(content):
                self._write(target, content)
        except OSError as refused:
            raise DISK_SPACE.error(target, f"a medium of {self.elsewhere} cannot be written: {refused}") from refused
        return name

    def _write(self, target: Path, content: bytes) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(content) > self._room:
            self._room = max(len(content), RESERVED_AT_ONCE)
            make_room(self.home, self._room, self.elsewhere)
        self._room -= len(content)
        with replacing(target) as partial:
            partial.write_bytes(content)

    def _beside(self, path: Any) -> Any:
        is_relative = isinstance(path, str) and path and not os.path.isabs(path) and "://" not in path
        return str(self.elsewhere / path) if is_relative else path
