"""Whether a job may start: a kept report of preflight says so, or the launch looks itself, without decoding.

    launch.launch("train", path, "local", ready=gate.ready)

With gate.skipped, which is --skip-preflight, nothing is looked at, and the job's record says so.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from vidqa.contract.cli import note
from vidqa.jobs.asked import Asked
from vidqa.jobs.launch import Readiness, Ready, Wanted
from vidqa.jobs.records import AT_LAUNCH, PASSED, SKIPPED
from vidqa.preflight import kept

LOOKING = (
    "no passed preflight of this spec, data and model is kept: everything is checked now but the frames of videos "
    "(scripts/preflight.py decodes them, too)"
)


def ready(
    asked: Asked, spec_path: Path, platform_name: str, wanted: Wanted, *, fetch: bool, engine: str = "vidqa"
) -> Readiness:
    """What a kept report says; where it did not pass, or nothing is kept, the problems that are found now. With `fetch`
    what is found now is kept, too."""
    known = kept.find(asked, platform_name, engine)
    if known and known.passed:
        return Readiness(PASSED if known.decoded else AT_LAUNCH, plan=kept.plan_of(asked, platform_name, engine))
    note(LOOKING)
    from vidqa.preflight.at_launch import look  # every check, and the libraries they need

    found = look(asked, spec_path, platform_name, wanted, engine, known, fetch=fetch)
    return Readiness(AT_LAUNCH, found, kept.plan_of(asked, platform_name, engine))


def of_engine(engine: str) -> Ready:
    return partial(ready, engine=engine)


def skipped(asked: Asked, spec_path: Path, platform_name: str, wanted: Wanted, *, fetch: bool) -> Readiness:
    return Readiness(SKIPPED)
