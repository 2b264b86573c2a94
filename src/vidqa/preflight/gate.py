"""Whether a job may start: by a kept report of preflight, or by checks of the launch, which do not decode.

    launch.launch("train", path, "local", ready=gate.ready)

With gate.skipped, which is --skip-preflight, nothing is checked, and the job's record says so.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from vidqa.contract.cli import note
from vidqa.jobs.job_spec import JobSpec
from vidqa.jobs.launch import Readiness, Ready, Resources
from vidqa.jobs.records import AT_LAUNCH, PASSED, SKIPPED
from vidqa.preflight import kept

LOOKING = (
    "no passed preflight of this spec, data and model is kept: everything is checked now but the frames of videos "
    "(scripts/preflight.py decodes them, too)"
)


def ready(
    job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool, engine: str = "vidqa"
) -> Readiness:
    """The verdict of the kept report; if it did not pass, or there is none, of the checks at launch. With `fetch` their
    result is kept."""
    report = kept.find(job_spec, platform_name, engine)
    if report and report.passed:
        return Readiness(PASSED if report.decoded else AT_LAUNCH, plan=kept.plan_of(job_spec, platform_name, engine))
    note(LOOKING)
    from vidqa.preflight.at_launch import look  # every check, and the libraries they need

    found = look(job_spec, spec_path, platform_name, resources, engine, report, fetch=fetch)
    return Readiness(AT_LAUNCH, found, kept.plan_of(job_spec, platform_name, engine))


def of_engine(engine: str) -> Ready:
    return partial(ready, engine=engine)


def skipped(job_spec: JobSpec, spec_path: Path, platform_name: str, resources: Resources, *, fetch: bool) -> Readiness:
    return Readiness(SKIPPED)
