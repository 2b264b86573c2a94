"""A journal: one event per line of a file, on disk before any action on it.

Each line has its number, its time, and a checksum over all lines before it. A truncated last line, as a kill or a power
cut leaves it, is skipped and then replaced; any other damage is a problem. (optuna's JournalStorage appends to such a
line, after which the file cannot be opened.) Readers need no lock; writers must exclude each other.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from vidqa.core.cli import FILE_REFUSED, refused_writes
from vidqa.core.files import now
from vidqa.core.problem import Code, Problem

JOURNAL_BROKEN = Code(
    "JOURNAL_BROKEN",
    "A line in the journal of a study or the log of a loop is invalid, or (a warning) the last line is truncated.",
    "Restore the file from a copy, or truncate it before the line that the problem names: jobs of lost lines are found "
    "again, and stages of a loop run again.",
)
Event = dict[str, Any]


class Journal:
    """The events in a file; none without it. `torn` is a warning about a truncated last line. Raises JOURNAL_BROKEN
    with the number of the first damaged line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.torn: Problem | None = None
        self._check = ""  # of the last line; empty for lines of a journal without checksums
        self._size = 0  # bytes up to the end of the last complete line
        self._read()

    def append(self, event: Event) -> Event:
        """Write an event, and return it with its number and time once it is synced to disk. Raises ENV_FILE_REFUSED,
        and then no action may follow."""
        entry = json.loads(json.dumps({"seq": len(self.events) + 1, "time": now(), **event}, allow_nan=False))
        check = _check_of(self._check, entry)
        line = json.dumps({**entry, "check": check}, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with refused_writes(self.path):
            self._write(line)
        self._check, self._size = check, self._size + len(line)
        self.events.append(entry)
        return entry

    def _write(self, line: bytes) -> None:
        """Replace what follows the last complete line; the line and the name of a new file are synced to disk."""
        with open(self.path, "ab", buffering=0) as file:
            file.truncate(self._size)
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(file)
        if not self._size:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _read(self) -> None:
        try:
            *lines, rest = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise FILE_REFUSED.error(self.path.parent, "it is not a folder") from None
        except OSError as failed:
            raise JOURNAL_BROKEN.error(self.path, f"it cannot be read: {failed}") from failed
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError) as broken:
                if number < len(lines) or rest:
                    raise self.broken(number, "it is not JSON") from broken
                rest = line
                break
            self._take(number, event)
            self._size += len(line) + 1
        if rest:
            number, remedy = len(self.events) + 1, "no action needed: what it stood for is done again"
            message = f"line {number}, the last one, is truncated and is ignored"
            self.torn = JOURNAL_BROKEN.at(f"{self.path}:{number}", message, remedy, severity="warning")

    def _take(self, number: int, event: Any) -> None:
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise self.broken(number, "it is not an event")
        written = event.get("seq", event.get("number"))  # `number` in logs of loops that earlier states wrote
        if written != number or written is True:
            raise self.broken(number, f"its number is {written}: lines are missing or doubled")
        check = event.pop("check", None)
        if check != _check_of(self._check, event) and (check is not None or self._check):
            raise self.broken(number, "it has changed since it was written: its checksum differs")
        self._check = check or ""
        self.events.append(event)

    def broken(self, number: int, why: str) -> Exception:
        return JOURNAL_BROKEN.error(f"{self.path}:{number}", f"line {number}: {why}")


def _check_of(before: str, event: Event) -> str:
    text = json.dumps(event, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(f"{before}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
