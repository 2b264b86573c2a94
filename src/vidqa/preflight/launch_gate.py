"""Whether a job may start: by a cached report of preflight, or by the checks of the launch, which do not decode.

    launch.launch("train", path, "local", ready=launch_gate.ready)

With launch_gate.skipped, which is --skip-preflight, nothing is checked, and the job's record says so.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from vidqa.core.cli import note
from vidqa.jobs.job_spec import JobSpec
from vidqa.jobs.launch import Readiness, Ready, Resources
from vidqa.jobs.records import AT_LAUNCH, PASSED, SKIPPED
from vidqa.preflight import report_cache

NO_REPORT = (
    "no passed preflight of this spec, data and model is kept: everything is checked now but the frames of videos "
    "(scripts/preflight.py decodes them, too)"
)


def ready(
    job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool, engine: str = "vidqa"
) -> Readiness:
    """The verdict of the cached report; if it did not pass, or there is none, of the checks at launch. With `fetch`
    their result is cached."""
    key = (job_spec, platform_name, engine)
    cached = report_cache.load(*key)
    if cached and cached.passed:
        return Readiness(PASSED if cached.decoded else AT_LAUNCH, plan=report_cache.plan_path(*key))
    note(NO_REPORT)
    from vidqa.preflight.report import check_at_launch  # every check, and the libraries they need

    problems = check_at_launch(job_spec, spec_path, platform_name, resources, engine, cached, fetch=fetch)
    return Readiness(AT_LAUNCH, problems, report_cache.plan_path(*key))


def of_engine(engine: str) -> Ready:
    return partial(ready, engine=engine)


def skipped(job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool) -> Readiness:
    return Readiness(SKIPPED)
