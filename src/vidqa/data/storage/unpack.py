"""Unpacks archives of somebody else's beside themselves: plain files in the folder, of bounded size, no links."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from vidqa.core.files import replacing
from vidqa.data.archive import READ_ERRORS
from vidqa.data.archive_cache import ALWAYS_TAKEN, MOST_EXPANSION, MOST_MEMBERS, open_tar, plain_members
from vidqa.data.problems import TAR_BROKEN

BLOCK = 1 << 20


def unpack(archive: Path) -> int:
    """Write the plain files of a tar or zip into its own folder; how many were not there yet.

    Members that would lie outside, links, and devices are left out. A file of the right length that is newer than its
    archive is not written again, and each appears only when it is whole. Raises DATA_TAR_BROKEN.
    """
    written, since = 0, archive.stat().st_mtime_ns
    with _sound(archive):
        for name, size, content in _members(archive):
            target = archive.parent / name
            if target == archive or _is_of(target, size, since):
                continue
            if any(above.is_symlink() for above in [target, *target.parents][: len(PurePosixPath(name).parts)]):
                raise tarfile.ReadError(f"{name} would be written through a link")
            with replacing(target) as partial, content as source, partial.open("wb") as out:
                shutil.copyfileobj(source, out, BLOCK)
            written += 1
    return written


def _is_of(target: Path, size: int, since: int) -> bool:
    status = target.stat() if target.is_file() else None
    return status is not None and status.st_size == size and status.st_mtime_ns >= since


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """(name, bytes, content) of every plain file. Raises READ_ERRORS and what zipfile raises."""
    size = os.path.getsize(archive)
    if archive.suffix.lower() != ".zip":
        mode = "r:" if archive.name.lower().endswith(".tar") else "r:gz"
        with open_tar(archive, mode) as tar:  # type: ignore[arg-type]
            for _, name, member in plain_members(tar, size):
                content = tar.extractfile(member)
                assert content is not None  # it is a plain file
                yield name, member.size, content
        return
    with zipfile.ZipFile(archive) as packed:
        entries = packed.infolist()
        if len(entries) > MOST_MEMBERS or sum(item.file_size for item in entries) > max(
            ALWAYS_TAKEN, MOST_EXPANSION * size
        ):
            raise tarfile.ReadError("it expands to more than is taken")
        for entry in entries:
            parts = PurePosixPath(entry.filename).parts
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if entry.is_dir() or kind not in (0, stat.S_IFREG) or ".." in parts or entry.filename.startswith("/"):
                continue
            yield "/".join(parts), entry.file_size, packed.open(entry)


@contextmanager
def _sound(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*READ_ERRORS, zipfile.BadZipFile, NotImplementedError, zlib.error) as broken:
        raise TAR_BROKEN.error(
            archive, f"{type(broken).__name__}: {broken}", "remove it, and run this again"
        ) from broken
