"""The journal of a study, which only the controller writes, while it holds the lock of the study; and its inbox."""

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
from typing import Annotated, Any, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vidqa.automl.history import History
from vidqa.core import files
from vidqa.core.cli import note, refused_writes
from vidqa.core.files import read_object
from vidqa.core.journal import Journal
from vidqa.core.locks import BUSY, try_lock
from vidqa.jobs.platforms.processes import ProcessIdentity, this_process

JOURNAL, LOCK, INBOX = "journal.jsonl", "controller.lock", "inbox"
ENQUEUE, TELL, STOP = "enqueue", "tell", "stop"
SCHEMA_VERSION = 1


class _Open(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


class _Values(_Open):
    values: dict[str, Any]
    proposer: str


class _Tell(_Values):
    objectives: Annotated[list[float], Field(min_length=1)]


CONTENT: dict[str, type[BaseModel]] = {ENQUEUE: _Values, TELL: _Tell, STOP: _Open}


@dataclass(frozen=True)
class StudyJournal:
    """The journal of a study, and the state after its events."""

    log: Journal
    history: History

    @property
    def note(self) -> str:
        """A note about a truncated last line; empty without one."""
        return self.log.torn.message if self.log.torn else ""


def read(folder: Path) -> StudyJournal:
    """Read the journal; no events without one. Raises JOURNAL_BROKEN with the number of the first damaged line."""
    log, history = Journal(folder / JOURNAL), History()
    for event in log.events:
        try:
            if event["event"] == "created" and event["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"it is of version {event['schema_version']}; this program writes {SCHEMA_VERSION}")
            history.take(event)
        except (LookupError, ValueError, TypeError, AttributeError) as damage:
            raise log.broken(event["seq"], str(damage)) from damage
    return StudyJournal(log, history)


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
