"""Media that a table holds as bytes, as Video and Image columns of Hugging Face do, written to files of the cache.

They lie among the unpacked archives (`unpacked.py`), which are removed by the same rule. A file is named for its
content, so that rows that show the same video share it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from vidqa.core.environment import cache_folder
from vidqa.core.files import replacing
from vidqa.data.archive_cache import MEMBERS, in_use, make_room
from vidqa.data.foreign_rows import with_media

RESERVED_AT_ONCE = 64 << 20
NAMED = 24  # characters of a content's hash in a name


class EmbeddedMedia:
    """The place of one table's media, by the table's `key`. `elsewhere` is the folder that paths without bytes are
    relative to."""

    def __init__(self, key: str, elsewhere: Path) -> None:
        self.home = cache_folder() / "archives" / key
        self.folder = self.home / MEMBERS
        self.elsewhere = elsewhere
        self._room = 0  # bytes that may be written before room is asked for again

    def unpacked(self, row: Any) -> Any:
        """The row with the names of its media in place of their bytes. Raises STORAGE_NO_SPACE, OSError."""
        return with_media(row, self._named) if isinstance(row, dict) else row

    def _named(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return self._beside(value)
        content, path = value.get("bytes"), value.get("path")
        if not isinstance(content, bytes):
            return self._beside(path) if path else value
        ending = Path(path).suffix if isinstance(path, str) else ""
        name = hashlib.sha256(content).hexdigest()[:NAMED] + ending.lower()
        target = self.folder / name
        if not target.is_file() or target.stat().st_size != len(content):
            self._write(target, content)
        return name

    def _write(self, target: Path, content: bytes) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        in_use(self.home)
        if len(content) > self._room:
            self._room = max(len(content), RESERVED_AT_ONCE)
            make_room(self.home, self._room, self.elsewhere)
        self._room -= len(content)
        with replacing(target) as partial:
            partial.write_bytes(content)

    def _beside(self, path: Any) -> Any:
        is_relative = isinstance(path, str) and path and not os.path.isabs(path) and "://" not in path
        return str(self.elsewhere / path) if is_relative else path
