"""What the action `count` adds to preflight, and to what is shown of a job that is over."""

from pathlib import Path
from typing import Any

from vidqa.core.files import read_object
from vidqa.core.problem import Problem
from vidqa.data.problems import MEDIA_MISSING
from vidqa.jobs.job_results import JobResults
from vidqa.preflight.inputs import Inputs
from vidqa.preflight.registry import Check


def few(context: Inputs) -> list[Problem]:
    records = context.annotations[0].records
    context.facts["worth_counting"] = len(records)
    return (
        [] if len(records) > 1 else [MEDIA_MISSING.at("count", "there is nothing worth counting", severity="warning")]
    )


def outcome(record: Any) -> JobResults:
    total = sum(read_object(Path(record.run_dir) / "counts.json").values())
    return JobResults({"tokens": total}, {"tokens": f"{total:,}"}, ["echo done"])


CHECKS = (Check("data", "enough to count", few, ("annotations",)),)
