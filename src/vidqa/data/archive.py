"""Media inside tar archives: an uncompressed tar is indexed and read in place, a compressed one is unpacked once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vidqa.data.problems import TAR_BROKEN
from vidqa.environment import cache_folder
from vidqa.files import ends_of

SUFFIXES = (".tar", ".tar.gz", ".tgz")
SEAM = re.compile(r"(\.(?:tar|tar\.gz|tgz))!", re.IGNORECASE)  # between an archive and its member: videos.tar!a.mp4
READ_ERRORS = (tarfile.TarError, OSError, EOFError, zlib.error)


class Member(NamedTuple):
    """Where a member's bytes are: under `name` in the tar `path`, or in the unpacked file `path` (`name` is None)."""

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

    def find(self, name: str) -> str | None:
        """The member that an annotation means by `name`: as written, or with the top folder added or left out."""
        stem = os.path.basename(self.path).split(".", 1)[0]
        choices = [name]
        choices += [f"{folder}/{name}" for folder in (self.top, stem) if folder]
        choices += [name[len(folder) + 1 :] for folder in (self.top, stem) if folder and name.startswith(f"{folder}/")]
        return next((choice for choice in choices if choice in self.members), None)


def is_archive(path: str | Path) -> bool:
    return str(path).lower().endswith(SUFFIXES)


def archive_and_member(name: str) -> tuple[str, str] | None:
    """The two parts of `archive.tar!member`, the member without `./`; None for the name of a plain file."""
    seam = SEAM.search(name)
    if seam is None:
        return None
    return name[: seam.end() - 1], "/".join(PurePosixPath(name[seam.end() :]).parts)


def open_archive(path: Path) -> Archive:
    """Index a tar, unpacking a compressed one into the cache first. Raises DATA_TAR_BROKEN."""
    compressed = not str(path).lower().endswith(".tar")
    try:
        members = _unpacked(path) if compressed else _indexed(path)
    except READ_ERRORS as broken:
        raise TAR_BROKEN.error(path, f"{type(broken).__name__}: {broken}") from broken
    tops = {PurePosixPath(name).parts[0] if "/" in name else "" for name in members}
    return Archive(str(path), members, tops.pop() if len(tops) == 1 else "")


def _safe_name(member: tarfile.TarInfo) -> str | None:
    """The member's name without `./`; None for what is not a plain file inside the archive's own tree."""
    parts = PurePosixPath(member.name).parts
    plain = member.isreg() and not member.issparse()
    if not plain or not parts or member.name.startswith("/") or ".." in parts:
        return None
    return "/".join(parts)


def _indexed(path: Path) -> dict[str, Member]:
    members: dict[str, Member] = {}
    total = path.stat().st_size
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            name = _safe_name(member)
            if name is None:
                continue
            if member.offset_data + member.size > total:
                raise tarfile.ReadError(f"the archive ends inside {member.name}")
            members[name] = Member(str(path), member.name, member.size)
    return members


def _unpacked(path: Path) -> dict[str, Member]:
    folder = cache_folder() / "archives" / _content_key(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # ranks that start together: one unpacks, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _unpack(path, folder)
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): Member(str(file), None, file.stat().st_size) for file in files}


def _unpack(path: Path, folder: Path) -> None:
    """Write the plain files of the archive into `folder`, which appears only when it is complete."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                name = _safe_name(member)
                content = tar.extractfile(member) if name else None
                if name is None or content is None:
                    continue
                target = partial / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out, 1 << 20)
        partial.mkdir(parents=True, exist_ok=True)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _content_key(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    digest.update(ends_of(path, size))
    return digest.hexdigest()[:32]


def archives_in(folder: Path) -> list[Path]:
    """The videos and images archives that lie in a dataset folder."""
    names = [f"{stem}{suffix}" for stem in ("videos", "images") for suffix in SUFFIXES]
    return [folder / name for name in names if (folder / name).is_file()]
