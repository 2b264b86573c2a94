"""Whether a job may start: by a cached report of preflight, or by the checks of the launch, which do not decode.

    launch.launch("train", path, "local", ready=launch_gate.ready)

With launch_gate.skipped (--skip-preflight) no check runs, and the job's record says so.

Reports are in the state folder, under a hash of the resolved spec, the annotations' bytes and the model's files. A
report lists every media file with its size and modification time, and is valid while these are unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from vidqa import __version__
from vidqa.core import environment
from vidqa.core.cli import note
from vidqa.core.files import now, remove, write_json
from vidqa.core.problem import Problem
from vidqa.data.record import Record
from vidqa.jobs.job_spec import JobSpec, written_anew
from vidqa.jobs.launch import Readiness
from vidqa.jobs.records import AT_LAUNCH, PASSED, SKIPPED
from vidqa.jobs.resources import Resources
from vidqa.planning import plan_cache
from vidqa.planning.plan import Plan
from vidqa.planning.plan_cache import Identity
from vidqa.planning.samples import Planner

UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.ValidationError)
PLAN = ".msgpack"
NO_REPORT = (
    "no passed preflight of this spec, data and model is recorded: everything is checked now except the frames of "
    "videos (scripts/preflight.py decodes them, too)"
)
MOST = 100  # reports; the oldest are removed
MOST_PLAN_BYTES = 1 << 30  # of all plans; the oldest are removed


@dataclass(frozen=True)
class CachedReport:
    """A cached report. `passed`: it had no error. `decoded`: it is of preflight, which decodes, not of a launch.
    `lasting` are the errors that only decoding detects; they are valid until a file changes. Each launch detects the
    others again. `warnings` were reported. The other fields are the options of preflight.report.preflight."""

    passed: bool
    decoded: bool
    lasting: list[Problem]
    warnings: list[Problem] = field(default_factory=list)
    evaluate_spec: str | None = None
    kpi_root: str | None = None
    gpu_count: int | None = None
    gpu_memory_gb: float | None = None
    gpu_arch: str | None = None

    @property
    def options(self) -> str:
        """The options of scripts/preflight.py for this report."""
        results = ("passed", "decoded", "lasting", "warnings")
        options = ((name, value) for name, value in vars(self).items() if name not in results and value is not None)
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options)


@dataclass(frozen=True)
class ReportKey:
    """The inputs of a report: its file, named by one hash of everything but the media files, and the identity of each
    of these. `plan` are the inputs of its plan (plan_cache.plan_inputs)."""

    path: Path
    media: dict[str, Identity]
    plan: dict[str, str]


def ready(
    job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool, engine: str = "vidqa"
) -> Readiness:
    """The verdict of the cached report; if it did not pass or does not exist, of the checks at launch, whose result is
    cached with `fetch`."""
    path = report_path(job_spec, platform_name, engine)
    cached = load(path)
    if cached and cached.passed:
        omitted = [*cached.warnings, *job_spec.spec_warnings]
        return Readiness(PASSED if cached.decoded else AT_LAUNCH, plan=_plan_at(path), omitted=omitted)
    note(NO_REPORT)
    if cached and cached.options:
        note(f"the failed preflight's options apply until it runs again with others: {cached.options}")
    from vidqa.preflight.report import check_at_launch  # imports all checks and their libraries

    problems = check_at_launch(job_spec, spec_path, platform_name, resources, engine, cached, fetch=fetch)
    refuted = [warning for warning in job_spec.spec_warnings if warning not in problems]
    return Readiness(AT_LAUNCH, problems, _plan_at(path), refuted)


def skipped(job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool) -> Readiness:
    return Readiness(SKIPPED)


def folder() -> Path:
    return environment.state_folder() / "preflight"


def key_of(
    job_spec: JobSpec, platform: str, engine: str, planner: Planner | None, read: Callable[[], Iterable[Record]]
) -> ReportKey:
    """The present inputs; `read` returns the records. Raises ProblemError."""
    # First: a change while records are read must make the report stale.
    plan_inputs = plan_cache.plan_inputs(job_spec.resolved, planner) if planner else {}
    media = plan_cache.media_paths(job_spec.resolved, read())
    return ReportKey(report_path(job_spec, platform, engine), plan_cache.file_identities(media), plan_inputs)


def store(key: ReportKey, report: CachedReport, plan: Plan | None = None) -> None:
    """Write the report over an earlier one of the same inputs, and the plan of the run beside it. A failure to write is
    only noted: the launch checks again, and the engine plans again."""
    content = {"created": now(), "report": asdict(report), "media": key.media}
    try:
        write_json(key.path, content, indent=None)
        if plan and key.plan:
            with suppress(UnicodeEncodeError):
                plan_cache.write(key.path.with_suffix(PLAN), plan_cache.encode(plan, key.plan, key.media))
        _remove_oldest()
    except OSError as unwritten:
        note(f"the report cannot be stored, so a launch checks all of this again: {unwritten}")


def load(path: Path) -> CachedReport | None:
    """The report in a file; None if it is missing, unreadable or stale."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        report = msgspec.convert(content["report"], CachedReport)
        before = {path: identity and tuple(identity) for path, identity in content["media"].items()}
        unchanged = plan_cache.file_identities(list(before)) == before
    except UNREADABLE:
        return None
    return report if unchanged else None


def report_path(job_spec: JobSpec, platform: str, engine: str) -> Path:
    """The report file of this spec, data and model: the same for a resumed run and for a retry from its run folder."""
    resolved = written_anew(job_spec.resolved).model_dump(mode="json")
    parts = [__version__, job_spec.action, platform, engine, resolved, job_spec.inputs_fingerprint]
    return folder() / f"{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]}.json"


def _plan_at(report: Path) -> Path | None:
    """The plan beside a report; its reader verifies the fingerprint."""
    plan = report.with_suffix(PLAN)
    return plan if plan.is_file() else None


def _remove_oldest() -> None:
    for path in _newest_first(".json")[MOST:]:
        remove(path, owner=folder())
    total = 0
    for path in _newest_first(PLAN):
        total += path.stat().st_size
        if total > MOST_PLAN_BYTES or not path.with_suffix(".json").exists():
            remove(path, owner=folder())


def _newest_first(suffix: str) -> list[Path]:
    return sorted(folder().glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
