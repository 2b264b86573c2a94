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

from pydantic import ValidationError

from vidqa.contract.files import now, read_object
from vidqa.contract.locks import try_lock
from vidqa.platforms.processes import Identity, this_process
from vidqa.automl.events import EVENTS, fields_of
from vidqa.automl.study_problems import STUDY_BUSY, STUDY_JOURNAL, STUDY_UNWRITABLE

JOURNAL, LOCK = "journal.jsonl", "controller.lock"
SCHEMA_VERSION = 1
NO_END, NO_JSON = "it has no end", "it is not JSON"
CUT_OFF = (NO_END, NO_JSON)  # what a power cut makes of a last line
MOST_SAID = 5  # of what is wrong with an event
Event = dict[str, Any]


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
    trials: list[int] = []  # the bracket of each
    rungs: list[int] = []  # how many each bracket has
    size, lines = 0, written.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        wrong = _wrong(line, number)
        if wrong in CUT_OFF and number == len(lines):
            return Read(events, size, f"line {number}, the last one, was cut off ({wrong}) and is passed over")
        event = {} if wrong else json.loads(line)
        if wrong := wrong or _misplaced(event, trials, rungs):
            raise STUDY_JOURNAL.error(f"{path}:{number}", wrong)
        events.append(event)
        size += len(line)
    return Read(events, size)


def _wrong(line: bytes, number: int) -> str:
    """What keeps a line from being event `number`; empty where nothing does."""
    if not line.endswith(b"\n"):
        return NO_END
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return NO_JSON
    if not isinstance(event, dict) or str(event.get("event")) not in EVENTS:
        return "it is no event that is known"
    if event.get("seq") != number or event["seq"] is True:
        return f"it says to be number {event.get('seq')}: lines are missing or doubled"
    if event["event"] == "created" and event.get("schema_version") != SCHEMA_VERSION:
        return f"it is of version {event.get('schema_version')}; this program writes {SCHEMA_VERSION}"
    try:
        EVENTS[event["event"]].model_validate(event)
    except ValidationError as refused:
        return "; ".join(map(_said, refused.errors()[:MOST_SAID]))
    return ""


def _said(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"it lacks {place}" if error["type"] == "missing" else f"{place}: {error['msg']}"


def _misplaced(event: Event, trials: list[int], rungs: list[int]) -> str:
    """What an event names that no event before it has told of; empty where nothing. Goes on with both lists."""
    kind, number = event["event"], event.get("number", 0)
    if kind == "created":
        if rungs:
            return "the study was created before"
        rungs += map(len, event["rungs"])
    elif not rungs and kind in ("trial", "promoted", "measured", "finished"):
        return "no event before it has created the study"
    elif kind == "trial":
        if number != len(trials) or event["bracket"] >= len(rungs) or (event["parent"] or 0) > max(number - 1, 0):
            place = f"trial {number} (bracket {event['bracket']}, parent {event['parent']})"
            return f"{place} comes after {len(trials)} trials of {len(rungs)} brackets"
        trials.append(event["bracket"])
    elif number >= len(trials) and "number" in event:
        return f"there is no trial {number} before it"
    elif event.get("winner") is not None and event["winner"] >= len(trials):
        return f"there is no trial {event['winner']} before it"
    if kind in ("trial", "promoted", "measured") and event["rung"] >= rungs[trials[number]]:
        return f"rung {event['rung']} is none of bracket {trials[number]}"
    return ""


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
        assert fields.keys() == fields_of(event), f"{event} has other fields: {sorted(fields)}"
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
