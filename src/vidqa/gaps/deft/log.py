"""The loop's log: one JSON object a line, appended and synced, each line bound to all before it by a checksum.

What the loop has done is what its log says. A line that was changed, lost or damaged is refused with its number; a last
line that was cut off by a kill is dropped, and named.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from vidqa.core.files import now
from vidqa.core.problem import Problem
from vidqa.gaps.problems import DEFT_LOG_BROKEN

Event = dict[str, Any]


class Log:
    """The events in a file, which `append` adds to. `torn` is the problem of a last line that was cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.torn: Problem | None = None
        self._check = ""
        self._whole = 0  # bytes of the file up to the last whole line
        self._read()

    def append(self, event: Event) -> Event:
        """Write an event, and return it with its number and time, once it is on the disk."""
        line = {"number": len(self.events) + 1, "at": now(), **event}
        self._check = _check_of(self._check, line)
        written = json.dumps({**line, "check": self._check}, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            file.truncate(self._whole)  # without the line that was cut off
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        self._whole += len(written)
        self.events.append(line)
        return line

    def _read(self) -> None:
        data = self.path.read_bytes() if self.path.is_file() else b""
        *lines, rest = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            self._take(number, line)
            self._whole += len(line) + 1
        if rest:
            where, message = f"{self.path}:{len(lines) + 1}", f"{len(rest)} bytes without an end of line are dropped"
            remedy = "nothing needs to be done: the stage of that line runs again"
            self.torn = DEFT_LOG_BROKEN.at(where, message, remedy, severity="warning")

    def _take(self, number: int, line: bytes) -> None:
        """Raises DEFT_LOG_BROKEN."""
        where = f"{self.path}:{number}"
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as broken:
            raise DEFT_LOG_BROKEN.error(where, f"line {number} is no JSON: {broken}") from broken
        if not isinstance(event, dict) or event.get("number") != number or not isinstance(event.get("event"), str):
            raise DEFT_LOG_BROKEN.error(where, f"line {number} is not event {number} of a loop")
        check = event.pop("check", None)
        if check != _check_of(self._check, event):
            raise DEFT_LOG_BROKEN.error(where, f"line {number} is not what was written: its checksum is another one")
        self._check = check
        self.events.append(event)


def _check_of(before: str, line: Event) -> str:
    text = json.dumps(line, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(f"{before}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
