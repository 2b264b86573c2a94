"""What others ask of a study: files in its inbox, which its controller takes, now or when it is started next."""

from __future__ import annotations

import secrets
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from vidqa.contract import files
from vidqa.contract.cli import note
from vidqa.automl.events import SAID
from vidqa.automl.study_problems import STUDY_UNWRITABLE

INBOX = "inbox"
ENQUEUE, TELL, STOP = "enqueue", "tell", "stop"


class Request(NamedTuple):
    """`name` orders requests, and tells one that was taken before."""

    name: str
    verb: str
    said: dict[str, Any]


def ask(folder: Path, verb: str, said: dict[str, Any]) -> str:
    """Leave a request and return its name. Raises STUDY_UNWRITABLE."""
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    try:
        files.write_json(folder / INBOX / f"{name}.json", {"verb": verb, "said": said})
    except OSError as failed:
        raise STUDY_UNWRITABLE.error(folder / INBOX, f"the request cannot be kept: {failed}") from failed
    return name


def pending(folder: Path) -> list[Request]:
    """What waits, the oldest first. Files that are no requests are left where they are."""
    found = []
    for path in sorted((folder / INBOX).glob("*.json")):
        told = files.read_object(path)
        verb, said = told.get("verb"), told.get("said")
        try:
            SAID[str(verb)].model_validate(said)
        except (KeyError, ValidationError) as wrong:
            _say_wrong(path, str(wrong).splitlines()[0])
            continue
        assert isinstance(said, dict)  # as the model says
        found.append(Request(path.stem, str(verb), said))
    return found


@cache
def _say_wrong(path: Path, why: str) -> None:
    note(f"{path} is no request of ours and is left there: {why}")


def forget(folder: Path, request: Request) -> None:
    files.remove(folder / INBOX / f"{request.name}.json", owner=folder)
