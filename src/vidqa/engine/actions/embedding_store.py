"""Vectors on disk, by key: one append-only file per rank and run; all files of a folder are read together.

A row is a key, a vector and a checksum. What a kill left of a last row is cut off before the next is written; a row
that is damaged counts as absent.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

KEY_BYTES = 16
ENDING = ".rows"


def _row(width: int) -> np.dtype:
    return np.dtype([("key", f"V{KEY_BYTES}"), ("vector", "<f4", (width,)), ("checksum", "<u4")])


class Vectors:
    """The vectors of a folder, each of `width` numbers; this process appends to the file that `writer` names."""

    def __init__(self, folder: Path, width: int, writer: str) -> None:
        self.folder, self.row, self.path = folder, _row(width), folder / f"{writer}{ENDING}"
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            os.truncate(self.path, self.path.stat().st_size // self.row.itemsize * self.row.itemsize)
        self._files: list[np.ndarray] = []
        self._places: dict[bytes, tuple[int, int]] = {}

    def append(self, vectors: Mapping[bytes, np.ndarray]) -> None:
        """Add float32 [width] by key; they are on disk when this returns."""
        rows = np.zeros(len(vectors), self.row)
        for at, (key, vector) in enumerate(vectors.items()):
            rows[at] = (np.void(key), vector, zlib.crc32(np.ascontiguousarray(vector, "<f4").tobytes()))
        with self.path.open("ab") as file:
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def look(self) -> None:
        """Take in what all files hold now; without it `get` knows nothing. Call it while no rank writes."""
        self._files, self._places = [], {}
        for number, path in enumerate(sorted(self.folder.glob(f"*{ENDING}"))):
            count = path.stat().st_size // self.row.itemsize
            rows = np.memmap(path, self.row, "r", shape=(count,)) if count else np.zeros(0, self.row)
            self._files.append(rows)
            for at in range(count):
                if zlib.crc32(rows["vector"][at].tobytes()) == rows["checksum"][at]:
                    self._places.setdefault(bytes(rows["key"][at]), (number, at))

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def get(self, key: bytes) -> np.ndarray | None:
        """float32 [width], or None."""
        if key not in self._places:
            return None
        number, at = self._places[key]
        return np.array(self._files[number]["vector"][at])
