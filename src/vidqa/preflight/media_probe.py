"""The table media_probe.parquet: the result of decoding each file, so that an unchanged file is not decoded again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from vidqa.core.environment import cache_folder
from vidqa.core.files import ends_of, replacing
from vidqa.video.pool import DecodeRequest

NAME = "media_probe.parquet"
DECODING_VERSION = 4  # part of every plan key: increase it if a file may now give other frames or another problem
EDGE_BYTES = 1 << 16  # read from each end of a file to detect changes


@dataclass(frozen=True)
class ProbeRow:
    """One file decoded by one plan. `content_key` changes with the file, `plan_key` with the planned frames. `fps` to
    `rotation` are None if the header cannot be read; `code` is empty if all frames decoded; `glance` is the signature
    for near duplicates."""

    path: str
    member: str | None
    kind: str
    content_key: str
    plan_key: str
    fps: float | None
    frames: int | None
    width: int | None
    height: int | None
    duration_s: float | None
    rotation: int | None
    frames_decoded: int
    decode_s: float
    code: str
    message: str
    remedy: str
    exit_code: int
    glance: bytes | None

    @property
    def identity(self) -> tuple[str, str | None, str]:
        return (self.path, self.member, self.plan_key)


Rows = dict[tuple[str, str | None, str], ProbeRow]


def plan_key(request: DecodeRequest) -> str:
    """A key of the planned frames of a file."""
    return hashlib.sha256(repr((DECODING_VERSION, request.kind, request.indices)).encode()).hexdigest()[:16]


def content_key(path: str) -> str:
    """A hash of a file's size, modification time, first and last 64 KiB. Empty if it cannot be read."""
    try:
        status = os.stat(path)
        return _content_key(path, status.st_size, status.st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=64)  # shared by all members of an archive
def _content_key(path: str, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256(f"{size} {mtime_ns}".encode())
    if os.path.isfile(path):
        digest.update(ends_of(path, size, EDGE_BYTES))
    return digest.hexdigest()[:32]


def place_for(spec_path: Path) -> Path:
    """The path beside the spec; in the cache folder if that folder is read-only."""
    folder = spec_path.absolute().parent
    if os.access(folder, os.W_OK):
        return folder / NAME
    return cache_folder() / "probes" / hashlib.sha256(str(folder).encode()).hexdigest()[:16] / NAME


def read_rows(path: Path) -> Rows:
    """The rows of an earlier preflight; empty if the file is missing, damaged, or of another version."""
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        return {}
    try:
        with pyarrow.parquet.ParquetFile(path) as file:  # read_table would import pandas
            table = file.read([field.name for field in fields(ProbeRow)])
        if not table.schema.equals(_schema(pyarrow)):
            return {}
        rows = [ProbeRow(**row) for row in table.to_pylist()]
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException):
        return {}
    return {row.identity: row for row in rows}


def write_rows(path: Path, rows: Iterable[ProbeRow]) -> None:
    """Replace the file; rows whose media file is gone are dropped. Raises OSError."""
    import pyarrow
    import pyarrow.parquet

    existing_rows = [asdict(row) for row in rows if os.path.exists(row.path)]
    table = pyarrow.Table.from_pylist(existing_rows, schema=_schema(pyarrow))
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def _schema(pyarrow: Any) -> Any:
    types = {
        "str": pyarrow.string(),
        "str | None": pyarrow.string(),
        "int": pyarrow.int64(),
        "int | None": pyarrow.int64(),
        "float": pyarrow.float64(),
        "float | None": pyarrow.float64(),
        "bytes | None": pyarrow.binary(),
    }
    return pyarrow.schema([(field.name, types[str(field.type)]) for field in fields(ProbeRow)])
