"""Whether trials should share GPUs: said by the plan of a study whose trials take long to start and end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidqa.contract.problem import ProblemError
from vidqa.preflight.inputs import DataInputs, Skip
from vidqa.preflight.memory_checks import peak_within
from vidqa.studies.places import Places, check_sharing, share_gib
from vidqa.studies.study import Study

END_S = 15.0  # from a trial's last step to the next trial's submission, about
WORTH = 0.15  # of a trial's time: less than this is not worth a smaller part of the memory
MOST = 4


def advice(study: Study, first: Path, found: Mapping[str, Any]) -> str:
    """The setting that lets GPUs compute while trials start and end, with its reason; empty where there is none, or it
    is chosen already. `first` is the spec of the first trial, `found` the estimate so far."""
    asked = study.settings
    gpus = len(Places(asked.platform, asked.resources.gpus).names)
    if asked.resources.trials_per_gpu > 1 or not gpus or "start_hours" not in found:
        return ""
    idle_s = found["start_hours"] * 3600 + END_S
    computing_s = max(1.0, (found["hours_of_one"] - found["start_hours"]) * 3600)
    share = idle_s / (idle_s + computing_s)
    if share < WORTH or asked.max_trials <= gpus:
        return ""
    # While one trial is idle, the others' steps are to last as long.
    for each in range(min(MOST, 1 + -(-int(idle_s) // int(computing_s))), 1, -1):
        if needs := _needs(study, first, each):
            return (
                f"start and end are about {share:.0%} of a trial's time: with --set resources.trials_per_gpu={each} "
                f"--concurrent {each * gpus} a GPU computes meanwhile; a trial then has {needs[1]:.1f} GiB of it and "
                f"needs about {needs[0]:.1f}"
            )
    return ""


def _needs(study: Study, first: Path, each: int) -> tuple[float, float] | None:
    """GiB that a training needs and that it would have, where `each` of them share a GPU; None where they cannot."""
    asked = study.settings
    place = asked.resources.model_copy(update={"trials_per_gpu": each})
    inputs = DataInputs(first, "train", asked.platform, resources=asked.launch_resources, at_launch=True)
    try:
        check_sharing(study.folder, asked.model_copy(update={"resources": place}), study.specs)
        has_gib = share_gib(each)
        peak_gib = None if has_gib is None else peak_within(inputs, has_gib)
    except (ProblemError, Skip):
        return None
    return None if has_gib is None or peak_gib is None else (peak_gib, has_gib)
