"""Files that are never half-written: text, JSON and links replaced by rename. Also content hashes, checks of file names
from third parties, and the only function that removes files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PureWindowsPath
from typing import Any, BinaryIO

from vidqa.core.environment import cache_folder
from vidqa.core.problem import Code

MOST_BYTES = 64 << 20  # of a JSON file that is read whole
KEPT_BYTES = 16 << 20  # size from which a file's hash is cached
SETTLED_NS = 2 * 10**9
NAMED = ("utf-8", "backslashreplace")  # encoding of a path as text that can be written
LONGEST_NAME = 255  # bytes of a file or folder name, on every file system of Linux
ANNOTATION_NAMES = ("annotations.json", "annotations.jsonl")  # default names in a dataset folder

REMOVAL_OUTSIDE = Code(
    "REMOVAL_OUTSIDE",
    "A file or folder to remove is outside the folder that owns it, or is reached through a link.",
    "Nothing was removed. Replace the link with a folder, or remove by hand what the message names, then run this "
    "again.",
)


def absolute(path: str | Path) -> Path:
    """The absolute path with ~ expanded; ~NAME of an unknown user is an ordinary name. `.` and `..` are removed from
    the text, so that equal places have equal paths; links are not resolved."""
    return Path(os.path.abspath(os.path.expanduser(path)))


def annotations_in_folder(folder: str | Path, names: Iterable[str] = ANNOTATION_NAMES) -> Path | None:
    """The first of these files that exists in a dataset folder; None if there is none."""
    paths = (Path(folder) / name for name in names)
    return next((path for path in paths if os.path.isfile(path)), None)  # False, too, for an invalid file name


def now() -> str:
    """The current time in the format of records and run folders."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; renamed to it when the block succeeds, removed when it fails."""
    if not path.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # The umask sets the permissions, as for any file that a program opens; they are not widened later.
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        remove(temporary, owner=path.parent)


def remove(path: Path, *, owner: Path) -> None:
    """Remove a file, a link (not its target) or a folder with its content, below the folder `owner`. A missing path is
    no error; files in a folder that cannot be removed stay.

    Every removal of the product goes through here, because paths may come from a listing, a record or a spec of a third
    party. Raises REMOVAL_OUTSIDE, and OSError for a file that cannot be removed.
    """
    require_owned(path, owner)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def require_owned(path: Path, owner: Path) -> None:
    """Raise REMOVAL_OUTSIDE unless `path` is below the folder `owner`, with links and dots resolved."""
    root, folder = os.path.realpath(owner), os.path.realpath(path.parent)
    if path.name in ("", os.pardir) or os.path.commonpath([root, folder]) != root:
        raise REMOVAL_OUTSIDE.error(path, f"it is in {folder}, not below {root}")


def name_error(name: object) -> str:
    """An error message for a third party's name that is unsafe below a folder of ours; empty for a safe name."""
    if not isinstance(name, str):
        return f"a name is text, not {type(name).__name__}"
    parts = name.split("/")
    if PureWindowsPath(name).drive or any(part in ("", os.curdir, os.pardir) for part in parts):
        return "a name is relative, without drive and without empty, `.` or `..` parts"
    try:
        too_long = any(len(part.encode()) > LONGEST_NAME for part in parts)
    except UnicodeEncodeError:
        return "a name must not contain a lone surrogate"
    if "\0" in name or too_long:
        return f"a name must not contain NUL, and each part has at most {LONGEST_NAME} bytes"
    return ""


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a plain file for reading; a pipe, which would block, or a device raises OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield file


def parse_json(path: Path, most_bytes: int) -> Any:
    """Parse the JSON in a third party's plain file of at most `most_bytes`. Raises OSError, ValueError."""
    with open_plain(path) as file:
        written = file.read(most_bytes + 1)
    if len(written) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    try:
        return json.loads(written.decode("utf-8"))
    except RecursionError as deep:
        raise ValueError("it nests too deeply") from deep


def read_json(path: Path) -> Any:
    """Read the JSON value in a file of ours. Raises OSError, and ValueError for values that `write_json` cannot write:
    JSON allows lone surrogates, NaN and unlimited nesting."""
    value = parse_json(path, MOST_BYTES)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as foreign:
        raise ValueError("it contains NaN or a lone surrogate") from foreign
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of ours; an empty one if there is none that can be read."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def objects_in(value: object) -> list[dict[str, Any]]:
    """The objects in a list of JSON; none if it is no list."""
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def value_in(values: Any, path: str) -> Any:
    """The value at a dotted path of nested tables; None if there is none."""
    inside: Any = values
    for name in path.split("."):
        inside = inside.get(name) if isinstance(inside, Mapping) else None
    return inside


def ends_of(path: str | Path, size: int, most: int = 1 << 20) -> bytes:
    """The first and last `most` bytes of a file of `size` bytes, to identify it without reading all of it."""
    with open(path, "rb") as file:
        first = file.read(most)
        file.seek(max(0, size - most))
        return first + file.read(most)


def content_hash(path: Path) -> str:
    """SHA-256 of a file. That of a large one is cached until the file changes. Raises OSError."""
    stamp = _stamp(path)
    if stamp[0] < KEPT_BYTES:
        return _digest(path)
    real_path = os.path.realpath(path).encode(*NAMED)
    cache_file = cache_folder() / "hashes" / f"{hashlib.sha256(real_path).hexdigest()[:32]}.json"
    cached = read_object(cache_file)
    if cached.get("stamp") == stamp and isinstance(cached.get("sha256"), str):
        return str(cached["sha256"])
    digest = _digest(path)
    # A file that was just changed may change again without a new mtime.
    if _stamp(path) == stamp and time.time_ns() - max(stamp[1:3]) > SETTLED_NS:
        with suppress(OSError):
            write_json(cache_file, {"path": real_path.decode(), "stamp": stamp, "sha256": digest})
    return digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> list[int]:
    """A stamp that changes with a file, even if its times are set: ctime cannot be set."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def size_and_mtime(path: str | Path) -> tuple[int, int] | None:
    """Size in bytes and modification time in nanoseconds of a file; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL byte in the name
        return None
    return status.st_size, status.st_mtime_ns


def link_or_copy(path: str | Path, target: Path) -> None:
    """Make `target` a hard link to a file, or a copy if it is on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:
        with replacing(target) as temporary:
            shutil.copyfile(path, temporary)


def write_link(path: Path, target: str) -> None:
    """Write a symbolic link to `target`, a path relative to the link's own folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.link")
    remove(temporary, owner=path.parent)
    temporary.symlink_to(target)
    os.replace(temporary, path)
