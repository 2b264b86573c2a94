"""Media inside archives. Two uses:

* `open_archive`, `locate`: videos and images that records name inside a tar. An uncompressed tar is indexed and read in
  place; of a compressed one only the needed members are unpacked, into the cache.
* `unpack_beside`: tar and zip archives of published data sets, unpacked into the folder of the archive.

Only plain files are read, of bounded size; links and paths that lead out of a folder are not followed.
"""

from __future__ import annotations

import errno
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from vidqa.core.files import replacing
from vidqa.data.media_cache import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION, MAX_MEMBERS, Unpacked, open_tar, plain_members
from vidqa.data.problems import DISK_SPACE, MEDIA_MISSING, TAR_BROKEN

SUFFIXES = (".tar", ".tar.gz", ".tgz")
# Separator in the name of a member: videos.tar!a.mp4. Group 1 is the suffix of the archive.
ARCHIVE_SEPARATOR = re.compile(r"(\.(?:tar|tar\.gz|tgz))!", re.IGNORECASE)
READ_ERRORS = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError, RecursionError)
ZIP_ERRORS = (zipfile.BadZipFile, lzma.LZMAError, RuntimeError)  # RuntimeError: it is encrypted
WRITE_REFUSED = (*(errno.ENOSPC, errno.EDQUOT, errno.EFBIG), *(errno.EROFS, errno.EACCES, errno.EPERM))


class Member(NamedTuple):
    """Location of a member's bytes: `name` in the tar `path`, or, once it is unpacked, the file `path` (`name` is
    None)."""

    path: str
    name: str | None
    size: int


@dataclass(frozen=True)
class Archive:
    """The index of a tar: its plain files by name, without `./`.

    `top` is the folder that contains all members, else "". `unpacked` is the cache folder of a compressed tar.
    """

    path: str
    members: dict[str, Member]
    top: str
    unpacked: Unpacked | None = None

    def unpack(self, names: set[str]) -> None:
        """Unpack these members of a compressed tar to their paths in the cache; a no-op for an uncompressed tar.
        Raises DATA_TAR_BROKEN, ENV_DISK_SPACE."""
        if self.unpacked and names:
            with _broken_archive_reported(self.path):
                self.unpacked.unpack(names)

    @cached_property
    def by_file_name(self) -> dict[str, str]:
        """Members by file name without folders; file names shared by several members are left out."""
        counts = Counter(PurePosixPath(member).name for member in self.members)
        return {name: member for member in self.members if counts[name := PurePosixPath(member).name] == 1}

    def find(self, name: str) -> str | None:
        """The member for the name in an annotation: as written, or with the top folder, or a folder with the archive's
        name, added or removed. None if there is none."""
        folders = [folder for folder in (self.top, os.path.basename(self.path).split(".", 1)[0]) if folder]
        candidates = [name, *(f"{folder}/{name}" for folder in folders)]
        candidates += [name.removeprefix(f"{folder}/") for folder in folders if name.startswith(f"{folder}/")]
        return next((candidate for candidate in candidates if candidate in self.members), None)


def locate(path: str, member: str | None) -> tuple[str, str | None]:
    """Locate the bytes of the plain file `path` (`member` None) or of a member of the archive `path`. Returns (file,
    None), or (tar, member name) for an uncompressed tar. The archive's index is cached until the file changes.

    Raises DATA_TAR_BROKEN, ENV_DISK_SPACE, and DATA_MEDIA_MISSING for a missing member.
    """
    if member is None:
        return path, None
    with _broken_archive_reported(path):
        status = os.stat(path)
    archive = _cached_archive(path, status.st_size, status.st_mtime_ns)
    name = archive.find(member)
    if name is None:
        raise MEDIA_MISSING.error(f"{path}!{member}", "the archive has no such member")
    archive.unpack({name})
    bytes_at = archive.members[name]
    return bytes_at.path, bytes_at.name


@lru_cache(maxsize=8)
def _cached_archive(path: str, size: int, mtime_ns: int) -> Archive:
    """The index of an archive; size and mtime are part of the key, so that a changed file is read again."""
    return open_archive(Path(path))


def is_archive(path: str | Path) -> bool:
    return str(path).lower().endswith(SUFFIXES)


def archive_and_member(name: str) -> tuple[str, str] | None:
    """The two parts of `archive.tar!member`, the member without `./`; None for the name of a plain file."""
    separator = ARCHIVE_SEPARATOR.search(name)
    if separator is None:
        return None
    return name[: separator.end() - 1], "/".join(PurePosixPath(name[separator.end() :]).parts)


def open_archive(path: Path) -> Archive:
    """Index a tar; nothing is unpacked. Raises DATA_TAR_BROKEN."""
    unpacked = None
    with _broken_archive_reported(path):
        if str(path).lower().endswith(".tar"):
            members = _tar_index(path)
        else:
            unpacked = Unpacked(path)
            members = {name: Member(unpacked.path_of(name), None, size) for name, size in unpacked.sizes().items()}
    tops = {PurePosixPath(name).parts[0] if "/" in name else "" for name in members}
    return Archive(str(path), members, tops.pop() if len(tops) == 1 else "", unpacked)


@contextmanager
def _broken_archive_reported(path: str | Path) -> Iterator[None]:
    """Turn the many errors of broken archives into DATA_TAR_BROKEN, and refused writes into ENV_DISK_SPACE."""
    try:
        yield
    except (*READ_ERRORS, *ZIP_ERRORS) as broken:
        if isinstance(broken, OSError) and broken.errno in WRITE_REFUSED and broken.filename != os.fspath(path):
            raise DISK_SPACE.error(path, f"it cannot be unpacked: {broken}") from broken
        raise TAR_BROKEN.error(path, f"{type(broken).__name__}: {broken}") from broken


def _tar_index(path: Path) -> dict[str, Member]:
    members: dict[str, Member] = {}
    total = path.stat().st_size
    with open_tar(path) as tar:
        for _, name, member in plain_members(tar, total):
            if member.offset_data + member.size > total:
                raise tarfile.ReadError(f"the archive ends inside {member.name}")
            members[name] = Member(str(path), member.name, member.size)
    return members


def archives_in(folder: Path) -> list[Path]:
    """The videos and images archives in a dataset folder."""
    names = [f"{stem}{suffix}" for stem in ("videos", "images") for suffix in SUFFIXES]
    return [folder / name for name in names if (folder / name).is_file()]


def unpack_beside(archive: Path) -> int:
    """Write the plain files of a tar or zip into the archive's folder. Returns the number of written files.

    Links, devices and members with paths outside of the folder are left out. A file of the right size that is newer
    than the archive is kept. A file appears only when it is complete. Raises DATA_TAR_BROKEN, ENV_DISK_SPACE.
    """
    written, archive_mtime_ns = 0, archive.stat().st_mtime_ns
    with _broken_archive_reported(archive):
        for name, size, content in _plain_files(archive):
            target = archive.parent / name
            if target == archive or _is_extracted(target, size, archive_mtime_ns):
                continue
            if any(above.is_symlink() for above in [target, *target.parents][: len(PurePosixPath(name).parts)]):
                raise tarfile.ReadError(f"{name} would be written through a link")
            with replacing(target) as partial, content as source, partial.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            written += 1
    return written


def _is_extracted(target: Path, size: int, archive_mtime_ns: int) -> bool:
    status = target.stat() if target.is_file() else None
    return status is not None and status.st_size == size and status.st_mtime_ns >= archive_mtime_ns


def _plain_files(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield (name, bytes, content) of every plain file. Raises READ_ERRORS and the errors of zipfile."""
    size = os.path.getsize(archive)
    if archive.suffix.lower() != ".zip":
        with open_tar(archive) as tar:
            for _, name, member in plain_members(tar, size):
                content = tar.extractfile(member)
                assert content is not None  # a plain file has content
                yield name, member.size, content
        return
    with zipfile.ZipFile(archive) as packed:
        entries = packed.infolist()
        if len(entries) > MAX_MEMBERS or sum(item.file_size for item in entries) > max(
            ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size
        ):
            raise tarfile.ReadError("its files are too many, or too large for its size")
        for entry in entries:
            parts = PurePosixPath(entry.filename).parts
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if entry.is_dir() or kind not in (0, stat.S_IFREG) or ".." in parts or entry.filename.startswith("/"):
                continue
            yield "/".join(parts), entry.file_size, packed.open(entry)
