"""Files that are never half-written: text, JSON and links replaced by rename. And what tells files apart."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; renamed onto it when the block ends well, removed when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # Who may read it is for the umask to say, as with any file that a program opens: no file is made more open later.
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def is_writable(value: Any) -> bool:
    """Whether `write_json` can write a value: JSON may spell half of a surrogate pair or NaN, and nest without end."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def ends_of(path: str | Path, size: int, most: int = 1 << 20) -> bytes:
    """The first and last `most` bytes of a file of `size` bytes, which tell it from others without reading it all."""
    with open(path, "rb") as file:
        first = file.read(most)
        file.seek(max(0, size - most))
        return first + file.read(most)


def write_link(path: Path, target: str) -> None:
    """A symbolic link to `target`, relative to the link's own folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)
