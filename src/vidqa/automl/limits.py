"""When a search ends before its trials are done: limits that the user set, and failures that will not end by trying."""

from __future__ import annotations

import re

from vidqa.automl.history import History, better
from vidqa.automl.settings import Limits
from vidqa.automl.study import Study
from vidqa.automl.study_problems import STUDY_FAILING
from vidqa.automl.work import Jobs


def raise_failing(history: History, limits: Limits) -> None:
    """Raises STUDY_FAILING with the one reason of the last failures, or with all of them."""
    row = history.failures[-limits.failures_in_a_row :]
    if len(row) < limits.failures_in_a_row:
        return
    reasons = {_reason(why) for why in row}
    shared = f"all for one reason ({reasons.pop()}), the last: {row[-1]}" if len(reasons) == 1 else "; ".join(row)
    raise STUDY_FAILING.error("trials", f"{len(row)} trials in a row failed, {shared}")


def _reason(why: str) -> str:
    """The class of a failure, and the code of its problem where it has one."""
    found = re.match(r"\w+(: [A-Z]+(_[A-Z]+)+)?", why)
    return found[0] if found else why


def reached(study: Study, history: History, elapsed_s: float, jobs: Jobs) -> str:
    """The limit that ends the search now, in words; empty for none."""
    limits = study.settings.limits
    if limits.wall_hours is not None and elapsed_s >= limits.wall_hours * 3600:
        return f"{limits.wall_hours:g} hours are over"
    if limits.gpu_hours is not None and jobs.gpu_seconds() >= limits.gpu_hours * 3600:
        return f"{limits.gpu_hours:g} GPU hours are used"
    values = [entry.measured[-1].objectives[0] for entry in history.completed]
    if limits.target is not None and any(not better(study.goal, limits.target, than=value) for value in values):
        return f"a trial reached the target {limits.target:g}"
    if limits.no_progress is not None and len(values) > limits.no_progress:
        best = min(range(len(values)), key=lambda at: values[at] if study.goal.direction == "minimize" else -values[at])
        if len(values) - 1 - best >= limits.no_progress:
            return f"{limits.no_progress} trials in a row were no better"
    return ""
