"""Reports of preflight that are kept in the state folder: a launch of the same spec, data and model finds its own.

A report is found by what the job gets as its spec, by the annotations' bytes and by the model's files. It names every
media file with its size and time of change, and counts as long as all of them are what they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from vidqa import __version__
from vidqa.contract import environment
from vidqa.contract.files import now, write_json
from vidqa.contract.problem import Problem
from vidqa.dataset.record import Record
from vidqa.jobs.job_spec import JobSpec, written_anew
from vidqa.planning import stored_plan
from vidqa.planning.plan import Plan
from vidqa.planning.sample_table import Identity
from vidqa.planning.samples import Planner

SCHEMA_VERSION = 1
PLAN = ".parquet"
MOST = 100  # reports; the oldest go
MOST_PLAN_BYTES = 1 << 30  # of all plans; the oldest go


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
    """What a report is of: everything but the media files by one hash, and these files one by one. `plan` is what its
    plan is made of (stored_plan.inputs_of)."""

    fingerprint: str
    media: dict[str, Identity]
    plan: dict[str, str]

    @property
    def place(self) -> Path:
        return _place(self.fingerprint)


def folder() -> Path:
    return environment.state_folder() / "preflight"


def inputs(
    job_spec: JobSpec, platform: str, engine: str, planner: Planner | None, read: Callable[[], Iterable[Record]]
) -> Inputs:
    """What is about to be looked at; `read` gives the records. Raises ProblemError."""
    # First: what changes while records are read was not looked at.
    made_of = stored_plan.inputs_of(job_spec.resolved, planner) if planner else {}
    media = stored_plan.media_of(job_spec.resolved, read())
    return Inputs(_fingerprint(job_spec, platform, engine), stored_plan.identities_of(media), made_of)


def keep(seen: Inputs, report: Kept, plan: Plan | None = None) -> None:
    """Write the report down, in the place of an earlier one of the same, and the plan of the run beside it. Where that
    fails, a launch looks itself, and the engine plans."""
    content = {"schema_version": SCHEMA_VERSION, "created": now(), "report": asdict(report), "media": seen.media}
    with suppress(OSError):
        write_json(seen.place, content, indent=None)
        if plan and seen.plan:
            with suppress(UnicodeEncodeError):
                table = stored_plan.as_table(plan, seen.plan, seen.media)
                stored_plan.write(seen.place.with_suffix(PLAN), table)
        _forget_the_oldest()


def find(job_spec: JobSpec, platform: str, engine: str) -> Kept | None:
    """The report of this spec, data and model. None where there is none that can be read, or a medium has changed."""
    try:
        content = json.loads(_place(_fingerprint(job_spec, platform, engine)).read_text(encoding="utf-8"))
        report = _parse(content["report"]) if content["schema_version"] == SCHEMA_VERSION else None
        before = {path: identity and tuple(identity) for path, identity in content["media"].items()}
        unchanged = stored_plan.identities_of(list(before)) == before
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return report if unchanged else None


def plan_of(job_spec: JobSpec, platform: str, engine: str) -> Path | None:
    """The plan that is kept of this spec, data and model; whoever reads it makes sure that it is true."""
    place = _place(_fingerprint(job_spec, platform, engine)).with_suffix(PLAN)
    return place if place.is_file() else None


def _place(fingerprint: str) -> Path:
    return folder() / f"{fingerprint}.json"


def _parse(content: dict[str, Any]) -> Kept:
    """Raises KeyError, TypeError, ValueError for what `keep` did not write."""
    values = {field.name: content[field.name] for field in fields(Kept)}
    if not isinstance(values["passed"], bool) or not isinstance(values["decoded"], bool):
        raise ValueError("a verdict is true or false")
    return Kept(**{**values, "lasting": [Problem(**problem) for problem in values["lasting"]]})


def _fingerprint(job_spec: JobSpec, platform: str, engine: str) -> str:
    """The same for a run that goes on, and for the job of a run that is launched again from its own folder."""
    resolved = written_anew(job_spec.resolved).model_dump(mode="json")
    parts = [__version__, job_spec.action, platform, engine, resolved, job_spec.inputs_fingerprint]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _forget_the_oldest() -> None:
    for path in _by_age(".json")[MOST:]:
        path.unlink()
    held = 0
    for path in _by_age(PLAN):
        held += path.stat().st_size
        if held > MOST_PLAN_BYTES or not path.with_suffix(".json").exists():
            path.unlink()


def _by_age(suffix: str) -> list[Path]:
    """The newest first."""
    return sorted(folder().glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
