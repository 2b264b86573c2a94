"""Reports of preflight that are kept in the state folder: a launch of the same spec, data and model finds its own.

A report is found by what the job gets as its spec, by the annotations' bytes and by the model's files. It names every
media file with its size and time of change, and counts as long as all of them are what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from vidqa import __version__, storage
from vidqa.contract import environment
from vidqa.contract.files import now, write_json
from vidqa.contract.problem import Problem
from vidqa.dataset.archive import archives_in, is_archive
from vidqa.jobs.asked import Asked, written_anew
from vidqa.spec.keys import value_at

SCHEMA_VERSION = 1
MOST = 100  # reports; the oldest go
Identity = list[int] | None  # size and time of change in nanoseconds; None of a file that is not there


@dataclass(frozen=True)
class Kept:
    """A report. `passed` tells that it had no error; `decoded` that preflight made it, and not a launch without looking
    at frames. `lasting` are the errors that only decoding finds, and that stay as long as no file changes; the others
    are for each launch to find. The remaining fields are options that it was made with (preflight.report.preflight)."""

    passed: bool
    decoded: bool
    lasting: list[Problem]
    evaluate_spec: str | None = None
    kpi_root: str | None = None
    gpu_count: int | None = None
    gpu_memory_gb: float | None = None
    gpu_arch: str | None = None


@dataclass(frozen=True)
class Inputs:
    """What a report is of: everything but the media files by one hash, and these files one by one."""

    fingerprint: str
    media: dict[str, Identity]

    @property
    def place(self) -> Path:
        return folder() / f"{self.fingerprint}.json"


def folder() -> Path:
    return environment.state_folder() / "preflight"


def inputs(asked: Asked, platform: str, engine: str, media: Iterable[str]) -> Inputs:
    """What is about to be looked at; `media` are the paths of the files that records name."""
    paths = dict.fromkeys([*_archives(asked), *media])
    return Inputs(_fingerprint(asked, platform, engine), {path: _identity(path) for path in paths})


def keep(seen: Inputs, report: Kept) -> None:
    """Write the report down, in the place of an earlier one of the same. Where that fails, a launch looks itself."""
    told = {"schema_version": SCHEMA_VERSION, "created": now(), "report": asdict(report), "media": seen.media}
    with suppress(OSError):
        write_json(seen.place, told, indent=None)
        _forget_the_oldest()


def find(asked: Asked, platform: str, engine: str) -> Kept | None:
    """The report of this spec, data and model. None where there is none that can be read, or a medium has changed."""
    seen = Inputs(_fingerprint(asked, platform, engine), {})
    try:
        told = json.loads(seen.place.read_text(encoding="utf-8"))
        report = _parse(told["report"]) if told["schema_version"] == SCHEMA_VERSION else None
        unchanged = all(_identity(path) == identity for path, identity in told["media"].items())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return report if unchanged else None


def _parse(told: dict[str, Any]) -> Kept:
    """Raises KeyError, TypeError, ValueError for what `keep` did not write."""
    values = {field.name: told[field.name] for field in fields(Kept)}
    if not isinstance(values["passed"], bool) or not isinstance(values["decoded"], bool):
        raise ValueError("a verdict is true or false")
    return Kept(**{**values, "lasting": [Problem(**problem) for problem in values["lasting"]]})


def _fingerprint(asked: Asked, platform: str, engine: str) -> str:
    """The same for a run that goes on, and for the job of a run that is launched again from its own folder."""
    resolved = written_anew(asked.resolved).model_dump(mode="json")
    parts = [__version__, asked.action, platform, engine, resolved, asked.inputs_fingerprint]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _archives(asked: Asked) -> list[str]:
    """Those that media are looked for in: files unpacked from them lie in the cache, and do not change with them."""
    found: list[Path] = []
    for data in asked.declared.data:
        annotations, media = (str(value_at(asked.resolved, key)) for key in (data.annotations, data.media))
        place = Path(media or annotations)
        if annotations and not storage.is_remote(str(place)):
            found += [place] if is_archive(place) else archives_in(place if place.is_dir() else place.parent)
    return list(map(str, found))


def _identity(path: str) -> Identity:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


def _forget_the_oldest() -> None:
    by_age = sorted(folder().glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in by_age[:-MOST]:
        path.unlink()
