"""Large files of the web that no hub has: fetched with plain HTTP, gone on with where they were cut off."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vidqa.core.files import remove
from vidqa.data.problems import DAMAGED, UNREACHABLE

TIMEOUT_S = 30.0
BLOCK = 1 << 20


class WebFile(NamedTuple):
    """`size` bytes at an address, which are put into `folder`."""

    address: str
    folder: Path
    size: int

    @property
    def path(self) -> Path:
        return self.folder / PurePosixPath(self.address).name

    @property
    def missing(self) -> int:
        """Bytes that are not here yet."""
        return 0 if self.path.is_file() else self.size


def length_of(address: str) -> int:
    """Raises STORAGE_UNREACHABLE."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=TIMEOUT_S) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError) as failed:
        raise UNREACHABLE.error(address, f"it does not say what it holds: {failed}") from failed


def fetch_web(file: WebFile) -> Path:
    """The file, whole. Raises STORAGE_UNREACHABLE, STORAGE_DAMAGED."""
    if file.path.is_file() and file.path.stat().st_size == file.size:
        return file.path
    partial = file.path.with_name(f"{file.path.name}.part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    begun = partial.stat().st_size if partial.is_file() else 0
    request = urllib.request.Request(file.address, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            mode = "ab" if answer.status == 206 else "wb"  # a server without ranges begins again
            with partial.open(mode) as out:
                while block := answer.read(BLOCK):
                    out.write(block)
    except OSError as failed:
        raise UNREACHABLE.error(file.address, f"it was cut off: {failed}", "run this again: it goes on") from failed
    if (size := partial.stat().st_size) != file.size:
        if size > file.size:
            remove(partial, owner=file.folder)
        raise DAMAGED.error(file.address, f"{size:,} of {file.size:,} bytes have arrived", "run this again: it goes on")
    os.replace(partial, file.path)
    return file.path
