"""The journal of a study: one event per line, synced to disk before any action on it; and the controller's inbox.

Readers need no lock; only the controller writes, while it holds the lock of the study. A torn last line, as a power cut
leaves it, is skipped and then removed; any other damage is a problem. (optuna's JournalStorage appends to a torn line,
after which the study cannot be opened.)
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from vidqa import __version__
from vidqa.automl.decisions import Goal, State
from vidqa.automl.history import Event, History
from vidqa.core import files
from vidqa.core.cli import FILE_REFUSED, note, refused_writes
from vidqa.core.files import JOURNAL_BROKEN, now, read_object
from vidqa.core.locks import BUSY, try_lock
from vidqa.jobs.platforms.processes import ProcessIdentity, this_process

JOURNAL, LOCK, INBOX = "journal.jsonl", "controller.lock", "inbox"
ENQUEUE, TELL, STOP = "enqueue", "tell", "stop"
SCHEMA_VERSION = 1
MOST_ERRORS = 5  # most errors of one event in a message

Number = Annotated[int, Field(ge=0, le=1 << 53)]
Seconds = Annotated[float, Field(ge=0)]
Objectives = Annotated[list[float], Field(min_length=1)]
Rungs = Annotated[list[Annotated[list[Number], Field(min_length=1)]], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Open(_Strict):
    model_config = ConfigDict(extra="allow")


class _Settings(_Open):
    """The settings that a status shows; earlier versions have other keys."""

    algorithm: str
    goals: Annotated[list[Goal], Field(min_length=1)]
    max_trials: Number


class _Values(_Open):
    values: dict[str, Any]
    proposer: str


class _Tell(_Values):
    objectives: Objectives


CONTENT: dict[str, type[BaseModel]] = {ENQUEUE: _Values, TELL: _Tell, STOP: _Open}
COMMON: dict[str, Any] = {"seq": Number, "time": str, "elapsed_s": Seconds, "event": str}
FIELDS: dict[str, dict[str, Any]] = {
    "created": {
        **{"schema_version": int, "fingerprint": str, "settings": _Settings, "space": Any, "rungs": Rungs},
        "version": str,
    },
    "opened": {"controller": dict[str, Any], "data": (dict[str, str], {})},  # older journals lack the data
    "taken": {"request": str, "verb": Literal["enqueue", "tell", "stop"], "said": dict[str, Any]},
    "trial": {
        **{"number": Number, "values": dict[str, Any], "proposer": str, "rung": Number, "bracket": Number},
        **{"parent": Number | None, "extra": dict[str, Any], "repairs": list[str]},
    },
    "promoted": {"number": Number, "rung": Number},
    "pruned": {"number": Number, "why": str},
    "submitted": {
        **{"work": str, "job_id": str, "how": str, "gpus": list[str]},
        "places": (Annotated[int, Field(ge=1)], 1),  # older journals lack it: every job had its GPUs exclusively
    },
    "retried": {"work": str, "job_id": str, "why": str},
    "ended": {
        **{"work": str, "state": str, "job_id": str, "run_dir": str, "seconds": Seconds, "gpu_seconds": Seconds},
        "failure": dict[str, str] | None,
    },
    "measured": {
        **{"number": Number, "rung": Number, "steps": Number, "objectives": Objectives, "metrics": dict[str, Any]},
        "state": State,
    },
    "failed": {"number": Number, "rung": Number, "why": str},
    "scored": {"work": str, "metrics": dict[str, Any]},
    "removed": {"paths": list[str]},
    "searched": {"why": str},
    "skipped": {"what": str, "why": str},
    "reopened": {"max_trials": Number, "rungs": (Rungs | None, None)},  # older journals lack the rungs
    "stopped": {"why": str},
    "finished": {"winner": Number | None},
}
MODELS: dict[str, type[BaseModel]] = {
    name: create_model(name, __base__=_Strict, **COMMON, **fields) for name, fields in FIELDS.items()
}


@dataclass(frozen=True)
class JournalContent:
    """The events of a journal, the state after them, their size in bytes, and a note about a skipped torn line."""

    events: list[Event]
    history: History
    size: int = 0
    note: str = ""


def read(folder: Path) -> JournalContent:
    """Read the journal; no events without one. Raises JOURNAL_BROKEN with the number of the first damaged line."""
    path, history = folder / JOURNAL, History()
    events: list[Event] = []
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return JournalContent(events, history)
    except NotADirectoryError:
        raise FILE_REFUSED.error(folder, "it is not a folder") from None
    except OSError as failed:
        raise JOURNAL_BROKEN.error(path, f"it cannot be read: {failed}") from failed
    size, lines = 0, content.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            event = _event(line, number)
            history.take(event)
        except (LookupError, ValueError) as damage:
            if isinstance(damage, _TornLine) and number == len(lines):
                skipped = f"line {number}, the last one, is truncated ({damage}) and is ignored"
                return JournalContent(events, history, size, skipped)
            raise JOURNAL_BROKEN.error(f"{path}:{number}", str(damage.args[0])) from damage
        events.append(event)
        size += len(line)
    return JournalContent(events, history, size)


class _TornLine(ValueError):
    """A last line that is incomplete, as after a power cut."""


def _event(line: bytes, number: int) -> Event:
    """Parse event `number`. Raises ValueError for an invalid line."""
    if not line.endswith(b"\n"):
        raise _TornLine("it has no end")
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as broken:
        raise _TornLine("it is not JSON") from broken
    if not isinstance(event, dict) or str(event.get("event")) not in MODELS:
        raise ValueError(f"it is not a known event of version {__version__}; a newer version may have written it")
    if event.get("seq") != number or event["seq"] is True:
        raise ValueError(f"its number is {event.get('seq')}: lines are missing or doubled")
    if event["event"] == "created" and event.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"it is of version {event.get('schema_version')}; this program writes {SCHEMA_VERSION}")
    try:
        MODELS[event["event"]].model_validate(event)
        if event["event"] == "taken":
            CONTENT[event["verb"]].model_validate(event["said"])
    except ValidationError as invalid:
        raise ValueError("; ".join(map(_error_text, invalid.errors()[:MOST_ERRORS]))) from invalid
    return event


def _error_text(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"it lacks {place}" if error["type"] == "missing" else f"{place}: {error['msg']}"


class Journal:
    """A journal for writing. The first event replaces a torn last line."""

    def __init__(self, folder: Path, content: JournalContent) -> None:
        self.path, self.count, self.size = folder / JOURNAL, len(content.events), content.size

    def append(self, event: str, elapsed_s: float, **fields: Any) -> Event:
        """Write an event; it is synced when this returns. Raises ENV_FILE_REFUSED, and then no action may follow."""
        assert fields.keys() == FIELDS[event].keys(), f"{event} has other fields: {sorted(fields)}"
        entry = {"seq": self.count + 1, "time": now(), "elapsed_s": round(elapsed_s, 3), "event": event, **fields}
        line = (json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")
        with refused_writes(self.path):
            self.size = files.append_line(self.path, self.size, line)
        self.count += 1
        return entry


@contextmanager
def only_controller(folder: Path) -> Iterator[None]:
    """Hold the lock of a study; the system releases it when its holder dies. Raises BUSY, ENV_FILE_REFUSED."""
    path = folder / LOCK
    with refused_writes(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not try_lock(handle, path):
            holder = read_object(path)
            process = f"process {holder.get('pid', 'unknown')}"
            message = f"its controller is {process} on {holder.get('host', 'an unknown machine')}"
            raise BUSY.error(folder, message)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(this_process().as_dict()).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def controller_of(folder: Path) -> ProcessIdentity | None:
    """The process that controls a study now, as far as it is visible from this machine; None if there is none."""
    try:
        controller = msgspec.convert(read_object(folder / LOCK), ProcessIdentity)
    except msgspec.ValidationError:
        return None
    return controller if controller.may_be_alive else None


class Request(NamedTuple):
    """A file of the inbox; `name` orders requests and identifies one that was recorded before."""

    name: str
    verb: str
    content: dict[str, Any]


def send_request(folder: Path, verb: str, content: dict[str, Any]) -> str:
    """Write a request for the present or next controller, and return its name. Raises ENV_FILE_REFUSED."""
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    with refused_writes(folder / INBOX):
        files.write_json(folder / INBOX / f"{name}.json", {"verb": verb, "said": content})
    return name


def pending_requests(folder: Path) -> list[Request]:
    """The requests in the inbox, the oldest first. Other files are ignored."""
    requests = []
    for path in sorted((folder / INBOX).glob("*.json")):
        request = files.read_object(path)
        verb, content = str(request.get("verb")), request.get("said")
        try:
            CONTENT[verb].model_validate(content)
        except (KeyError, ValidationError) as invalid:
            _warn_once(path, str(invalid).splitlines()[0])
            continue
        assert isinstance(content, dict)  # guaranteed by the model
        requests.append(Request(path.stem, verb, content))
    return requests


@cache
def _warn_once(path: Path, why: str) -> None:
    note(f"{path} is not a request of this program and is ignored: {why}")


def remove_request(folder: Path, request: Request) -> None:
    files.remove(folder / INBOX / f"{request.name}.json", owner=folder)
