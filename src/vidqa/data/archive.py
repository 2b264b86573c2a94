"""Media inside tar archives: an uncompressed tar is indexed and read in place, of a compressed one the members that
records name are unpacked into the cache. Archives that were fetched are unpacked beside themselves: plain files in the
folder, of bounded size, no links."""

from __future__ import annotations

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
from vidqa.data.media_cache import ALWAYS_TAKEN, MOST_EXPANSION, MOST_MEMBERS, Unpacked, open_tar, plain_members
from vidqa.data.problems import MEDIA_MISSING, TAR_BROKEN

SUFFIXES = (".tar", ".tar.gz", ".tgz")
SEAM = re.compile(r"(\.(?:tar|tar\.gz|tgz))!", re.IGNORECASE)  # between an archive and its member: videos.tar!a.mp4
READ_ERRORS = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError, RecursionError)


class Member(NamedTuple):
    """Where a member's bytes are: under `name` in the tar `path`, or in the file `path` (`name` is None) once it is
    unpacked."""

    path: str
    name: str | None
    size: int


@dataclass(frozen=True)
class Archive:
    """The plain files of one archive, by name without `./`.

    `top` is the one folder that all members lie in, or "": names are found with and without it.
    """

    path: str
    members: dict[str, Member]
    top: str
    unpacked: Unpacked | None = None

    def unpack(self, names: set[str]) -> None:
        """See to it that these members can be read where `members` says. Raises DATA_TAR_BROKEN, STORAGE_NO_SPACE."""
        if self.unpacked and names:
            with _sound(self.path):
                self.unpacked.unpack(names)

    @cached_property
    def last_names(self) -> dict[str, str]:
        """Members by their last names, where no other has the same."""
        counted = Counter(PurePosixPath(member).name for member in self.members)
        return {last: member for member in self.members if counted[last := PurePosixPath(member).name] == 1}

    def find(self, name: str) -> str | None:
        """The member that an annotation means by `name`: as written, or with the top folder added or left out."""
        stem = os.path.basename(self.path).split(".", 1)[0]
        choices = [name]
        choices += [f"{folder}/{name}" for folder in (self.top, stem) if folder]
        choices += [name[len(folder) + 1 :] for folder in (self.top, stem) if folder and name.startswith(f"{folder}/")]
        return next((choice for choice in choices if choice in self.members), None)


def locate(path: str, member: str | None) -> tuple[str, str | None]:
    """Where a file, or the `member` that results name of the archive `path`, can be read: a file, and the name in it if
    it is an uncompressed tar. An archive is read through once, as long as it stays as it is.

    Raises DATA_TAR_BROKEN, STORAGE_NO_SPACE, and DATA_MEDIA_MISSING for a member that it does not have.
    """
    if member is None:
        return path, None
    with _sound(path):
        status = os.stat(path)
    archive = _unchanged(path, status.st_size, status.st_mtime_ns)
    name = archive.find(member)
    if name is None:
        raise MEDIA_MISSING.error(f"{path}!{member}", "the archive has no such member")
    archive.unpack({name})
    place = archive.members[name]
    return place.path, place.name


@lru_cache(maxsize=8)
def _unchanged(path: str, size: int, mtime_ns: int) -> Archive:
    """The index of an archive; size and time are part of the key, so that a changed one is read again."""
    return open_archive(Path(path))


def is_archive(path: str | Path) -> bool:
    return str(path).lower().endswith(SUFFIXES)


def archive_and_member(name: str) -> tuple[str, str] | None:
    """The two parts of `archive.tar!member`, the member without `./`; None for the name of a plain file."""
    seam = SEAM.search(name)
    if seam is None:
        return None
    return name[: seam.end() - 1], "/".join(PurePosixPath(name[seam.end() :]).parts)


def open_archive(path: Path) -> Archive:
    """Index a tar. Raises DATA_TAR_BROKEN."""
    unpacked = None
    with _sound(path):
        if str(path).lower().endswith(".tar"):
            members = _indexed(path)
        else:
            unpacked = Unpacked(path)
            members = {name: Member(unpacked.path_of(name), None, size) for name, size in unpacked.sizes().items()}
    tops = {PurePosixPath(name).parts[0] if "/" in name else "" for name in members}
    return Archive(str(path), members, tops.pop() if len(tops) == 1 else "", unpacked)


@contextmanager
def _sound(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (*READ_ERRORS, zipfile.BadZipFile, NotImplementedError) as broken:
        raise TAR_BROKEN.error(path, f"{type(broken).__name__}: {broken}") from broken


def _indexed(path: Path) -> dict[str, Member]:
    members: dict[str, Member] = {}
    total = path.stat().st_size
    with open_tar(path) as tar:
        for _, name, member in plain_members(tar, total):
            if member.offset_data + member.size > total:
                raise tarfile.ReadError(f"the archive ends inside {member.name}")
            members[name] = Member(str(path), member.name, member.size)
    return members


def archives_in(folder: Path) -> list[Path]:
    """The videos and images archives that lie in a dataset folder."""
    names = [f"{stem}{suffix}" for stem in ("videos", "images") for suffix in SUFFIXES]
    return [folder / name for name in names if (folder / name).is_file()]


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
                shutil.copyfileobj(source, out, 1 << 20)
            written += 1
    return written


def _is_of(target: Path, size: int, since: int) -> bool:
    status = target.stat() if target.is_file() else None
    return status is not None and status.st_size == size and status.st_mtime_ns >= since


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """(name, bytes, content) of every plain file. Raises READ_ERRORS and what zipfile raises."""
    size = os.path.getsize(archive)
    if archive.suffix.lower() != ".zip":
        with open_tar(archive) as tar:
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
