"""Tar archives for tests, also those that try to write outside of a folder."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def make_tar(
    path: Path, members: Mapping[str, bytes], prefix: str = "", links: Mapping[str, str] | None = None
) -> Path:
    """A tar, compressed where its name ends in .gz, of `members` by name and of symbolic `links` with their targets."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(prefix + name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return path
