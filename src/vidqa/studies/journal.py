"""The journal of a study: one event a line, appended and flushed to disk before anything follows from it.

It is all that is known of a study; whoever reads it needs no lock. Only the controller writes, while it holds the lock
of the study. Half a last line, which a power cut leaves, is passed over; any other damage is a problem.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.contract.files import now, read_object
from vidqa.contract.locks import try_lock
from vidqa.platforms.processes import Identity, this_process
from vidqa.studies.study_problems import STUDY_BUSY, STUDY_JOURNAL, STUDY_UNWRITABLE

JOURNAL, LOCK = "journal.jsonl", "controller.lock"
SCHEMA_VERSION = 1
Event = dict[str, Any]

# The fields of each event, beside seq, time and elapsed_s (seconds that controllers had worked by then).
EVENTS = {
    "created": {"schema_version", "fingerprint", "settings", "space", "rungs", "version"},
    "opened": {"controller"},
    "taken": {"request", "verb", "said"},
    "trial": {"number", "values", "proposer", "rung", "bracket", "parent", "extra", "repairs"},
    "promoted": {"number", "rung"},
    "pruned": {"number", "why"},
    "submitted": {"work", "job_id", "how", "gpus"},
    "retried": {"work", "job_id", "why"},
    "ended": {"work", "state", "job_id", "run_dir", "seconds", "gpu_seconds", "failure"},
    "measured": {"number", "rung", "steps", "objectives", "metrics", "state"},
    "failed": {"number", "rung", "why"},
    "scored": {"work", "metrics"},
    "removed": {"paths"},
    "searched": {"why"},
    "skipped": {"what", "why"},
    "reopened": {"max_trials"},
    "stopped": {"why"},
    "finished": {"winner"},
}
# Fields that events have had only since a later version: without `places`, a job has its GPUs to itself.
LATER = {"submitted": {"places"}}


@dataclass(frozen=True)
class Read:
    """The events of a journal, the bytes that they take, and what was passed over after them."""

    events: list[Event]
    size: int
    note: str = ""


def read(folder: Path) -> Read:
    """Raises STUDY_JOURNAL with the number of the first line that is damaged. No events where there is no journal."""
    path = folder / JOURNAL
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        return Read([], 0)
    except OSError as failed:
        raise STUDY_JOURNAL.error(path, f"it cannot be read: {failed}") from failed
    events: list[Event] = []
    size, lines = 0, written.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        wrong = _wrong(line, number)
        if wrong and number == len(lines):
            return Read(events, size, f"line {number}, the last one, was cut off ({wrong}) and is passed over")
        if wrong:
            raise STUDY_JOURNAL.error(f"{path}:{number}", wrong)
        events.append(json.loads(line))
        size += len(line)
    return Read(events, size)


def _wrong(line: bytes, number: int) -> str:
    """What keeps a line from being event `number`; empty where nothing does."""
    if not line.endswith(b"\n"):
        return "it has no end"
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return "it is not JSON"
    if not isinstance(event, dict) or event.get("event") not in EVENTS:
        return "it is no event that is known"
    if event.get("seq") != number:
        return f"it says to be number {event.get('seq')}: lines are missing or doubled"
    missing = EVENTS[event["event"]] - event.keys()
    if event["event"] == "created" and event.get("schema_version") != SCHEMA_VERSION:
        return f"it is of version {event.get('schema_version')}; this program writes {SCHEMA_VERSION}"
    return f"it lacks {', '.join(sorted(missing))}" if missing else ""


class Journal:
    """The journal to write to. What was cut off at its end is removed."""

    def __init__(self, folder: Path, found: Read) -> None:
        self.path, self.count = folder / JOURNAL, len(found.events)
        try:
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self.file, found.size)
            _sync_folder(folder)
        except OSError as failed:
            raise STUDY_UNWRITABLE.error(self.path, f"it cannot be opened: {failed}") from failed

    def append(self, event: str, elapsed_s: float, **fields: Any) -> Event:
        """Write an event; it is on disk when this returns. Raises STUDY_UNWRITABLE, and then nothing may follow."""
        assert fields.keys() == EVENTS[event] | LATER.get(event, set()), f"{event} has other fields: {sorted(fields)}"
        self.count += 1
        made = {"seq": self.count, "time": now(), "elapsed_s": round(elapsed_s, 3), "event": event, **fields}
        line = json.dumps(made, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            written = os.write(self.file, encoded := line.encode("utf-8", "backslashreplace"))
            if written != len(encoded):
                raise OSError(f"{written} of {len(encoded)} bytes were written")
            os.fsync(self.file)
        except OSError as failed:
            raise STUDY_UNWRITABLE.error(self.path, f"an event could not be kept: {failed}") from failed
        return made

    def close(self) -> None:
        os.close(self.file)


def _sync_folder(folder: Path) -> None:
    """A new file's name is on disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def only_controller(folder: Path) -> Iterator[None]:
    """Be the one controller of a study; the system gives the lock up when its holder dies. Raises STUDY_BUSY,
    LOCK_UNAVAILABLE."""
    path = folder / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as failed:
        raise STUDY_UNWRITABLE.error(path, f"the lock cannot be made: {failed}") from failed
    try:
        if not try_lock(handle, path):
            raise STUDY_BUSY.error(folder, f"its controller is {_shown(read_object(path))}")
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(this_process().as_dict()).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def controller_of(folder: Path) -> Identity | None:
    """The process that controls a study now, as far as can be seen from here; None where nobody does."""
    try:
        found = Identity.from_dict(read_object(folder / LOCK))
    except (KeyError, ValueError, TypeError):
        return None
    return found if found.may_be_alive else None


def _shown(said: dict[str, Any]) -> str:
    return f"process {said.get('pid', 'unknown')} on {said.get('host', 'a machine that is not named')}"
