"""Time, GPU hours and disk of a study: the estimate of one trial, from preflight or earlier jobs, times the trials; and
advice to share GPUs if trials spend much of their time on start and end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidqa.automl.problems import STUDY_SETTINGS
from vidqa.automl.study import Study, memory_share
from vidqa.automl.trial_jobs import GpuAllocator
from vidqa.core.cli import FILE_REFUSED
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.jobs import cost, records
from vidqa.jobs.platforms._base import State
from vidqa.preflight.data_checks import apart
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.memory_checks import peak_within
from vidqa.preflight.report import preflight
from vidqa.spec import total_steps
from vidqa.spec.schedule import train_samples

MEASURED_APART = (("train", "evaluation"), ("train", "test"), ("validation", "test"), ("evaluation", "test"))
END_S = 15.0  # from a trial's last step to the next trial's submission, about
WORTH = 0.15  # least idle share of a trial's time for which a smaller share of the memory pays off
MOST_SHARING = 4  # most trials on one GPU
MORE_ROOM = "raise the limit, make a trial shorter (--set steps.longest=N, fewer epochs), or train directly"


def study_estimate(study: Study, first: Path) -> tuple[dict[str, Any], list[Problem]]:
    """The estimate, and the problems that preflight finds in the template's spec `first` and in the limits."""
    settings = study.settings
    report = preflight(first, settings.platform, "train", resources=settings.resources)
    facts = report.facts
    trainings = study.algorithm.whole_trainings
    reruns = settings.finals.reruns
    estimate: dict[str, Any] = {"trials": settings.max_trials, "full_trainings": round(trainings, 2)}
    estimate |= {"re_runs": reruns, **_single_training(study, facts)}
    if estimate.get("hours_of_one"):
        count = trainings + reruns * study.whole / study.longest
        hours, gpu_hours = _concurrent_training(study, estimate)
        estimate["hours"] = round(hours * count / min(settings.max_concurrent, settings.max_trials), 3)
        estimate["gpu_hours"] = round(gpu_hours * count, 3)
    if "checkpoint_bytes" in facts:
        estimate |= {"disk_bytes": _disk(study, facts), "free_bytes": facts.get("free_bytes")}
    if study.memory_gib is not None:
        estimate["gpu_memory_gib"] = study.memory_gib
    if advice := sharing_advice(study, first, estimate):
        estimate["advice"] = advice
    shared, unreadable = _shared_media(study, first)
    if unreadable:
        estimate["not_compared"] = unreadable
    problems = [*report.problems, *shared]
    return estimate, [*problems, *_limit_problems(study, estimate), *_disk_problems(study, estimate)]


def _shared_media(study: Study, first: Path) -> tuple[list[Problem], list[str]]:
    """Problems of sets that share media: training sets with evaluation sets, and all sets that select trials with the
    test set. Also returns the sets that cannot be read here and are not compared."""
    settings = study.settings

    def context(name: str | None) -> Inputs:
        evaluation = study.folder / name if name else None
        return Inputs(first, "train", settings.platform, evaluate_spec=evaluation, at_launch=True)

    sets: dict[str, Any] = {"train": None, "validation": None}
    with suppress(Skip, ProblemError):  # the report has the reason
        sets = {part.name: part for part in context(None).annotations}
    for role, name in (("evaluation", settings.evaluation), ("test", settings.test)):
        if name:
            try:
                part = context(name).kpi
            except (Skip, ProblemError):  # the evaluation's own preflight has the reason
                part = None
            sets[role] = part and replace(part, name=role)
    read = {role: part for role, part in sets.items() if part and part.records}
    pairs = [(read[one], read[other]) for one, other in MEASURED_APART if one in read and other in read]
    problems = [problem for one, other in pairs for problem in apart(context(None), one, other)]
    return problems, [role for role in sets if role not in read]


def _single_training(study: Study, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hours of one whole training, and their source: preflight, or else the newest complete training of this model on
    this platform."""
    time, shown = facts.get("time") or {}, facts.get("total_steps") or 0
    whole = study.longest if study.by_steps else total_steps(study.trained, train_samples(study.trained) or 0) or shown
    if "hours" in time and shown:
        start_hours = time["start_s"] / 3600
        hours = start_hours + (time["hours"] - start_hours) * whole / shown
        gpu_hours = hours * facts.get("processes", 1)
        return {"hours_of_one": hours, "gpu_hours_of_one": gpu_hours, "start_hours": start_hours, "from": "preflight"}
    key = ("train", study.settings.platform, study.base.policy.model_name_or_path)
    for record in records.scan()[0] if whole else ():
        fits = (record.action, record.platform, record.model) == key and record.state == State.COMPLETE
        if fits and (steps := RunFolder(Path(record.run_dir)).read_status().get("step", 0)):
            hours = cost.running_s(record) / steps * whole / 3600
            gpu_hours = hours * record.processes if record.gpus else 0
            return {"hours_of_one": hours, "gpu_hours_of_one": gpu_hours, "from": f"job {record.job_id}"}
    return {"from": "nothing yet: no GPU whose speed is known, and no earlier training of this model"}


def _concurrent_training(study: Study, estimate: Mapping[str, Any]) -> tuple[float, float]:
    """Hours and GPU hours of a training on a shared GPU: trials compute in turns, while others start or end."""
    jobs, whole = study.settings.resources.trials_per_gpu, estimate["hours_of_one"]
    hours = max(jobs * (whole - estimate.get("start_hours", 0.0)), whole)
    return hours, hours / jobs * estimate["gpu_hours_of_one"] / whole


def _disk(study: Study, facts: Mapping[str, Any]) -> int:
    """Peak bytes on disk."""
    settings, saves = study.settings, facts["saves_kept"]
    checkpoint, export = facts["checkpoint_bytes"], facts["export_bytes"]
    if settings.keep == "all":
        return settings.max_trials * saves * (checkpoint + export)
    running = settings.max_concurrent * saves * (checkpoint + export)
    paused = settings.max_trials * (checkpoint + export) if study.algorithm.has_rungs else 0
    reruns = settings.finals.reruns * saves * (checkpoint + export)
    return running + paused + max(reruns, (settings.finals.top + 1) * saves * export)


def _limit_problems(study: Study, estimate: Mapping[str, Any]) -> list[Problem]:
    """Problems if the limits do not allow the template and one other trial."""
    settings, limits = study.settings, study.settings.limits
    if settings.max_trials < 2:
        return [STUDY_SETTINGS.at("max_trials", f"{settings.max_trials} trial is the template's own", MORE_ROOM)]
    if "hours_of_one" not in estimate:
        return []
    shortest = min(rungs[0] for rungs in study.algorithm.rungs) / study.longest
    two = 1 + shortest if study.algorithm.has_rungs else 2
    gpu_hours = two * estimate["gpu_hours_of_one"]
    hours = two * estimate["hours_of_one"] / min(2, settings.max_concurrent)
    return [
        STUDY_SETTINGS.at(
            f"limits.{name}", f"two trials take about {needed:.2f} {unit}; the limit is {limit:g}", MORE_ROOM
        )
        for name, unit, needed, limit in (
            ("gpu_hours", "GPU hours", gpu_hours, limits.gpu_hours),
            ("wall_hours", "hours", hours, limits.wall_hours),
        )
        if limit is not None and needed > limit
    ]


def _disk_problems(study: Study, estimate: Mapping[str, Any]) -> list[Problem]:
    needed, free = estimate.get("disk_bytes", 0), estimate.get("free_bytes")
    if free is None or needed <= free:
        return []
    message = f"about {needed / 1e9:.1f} GB at one time, {free / 1e9:.1f} GB free"
    remedy = "run fewer trials at a time, keep fewer checkpoints (train.ckpt.max_keep), or use a larger disk"
    return [FILE_REFUSED.at(study.folder, message, remedy, severity="warning")]


def sharing_advice(study: Study, first: Path, estimate: Mapping[str, Any]) -> str:
    """The setting that lets GPUs compute while trials start and end, with its reason; empty if there is none, or it is
    already set. `first` is the spec of the first trial."""
    settings = study.settings
    gpus = len(GpuAllocator(settings.platform, settings.resources.gpus).names)
    if settings.resources.trials_per_gpu > 1 or not gpus or "start_hours" not in estimate:
        return ""
    idle_s = estimate["start_hours"] * 3600 + END_S
    computing_s = max(1.0, (estimate["hours_of_one"] - estimate["start_hours"]) * 3600)
    share = idle_s / (idle_s + computing_s)
    if share < WORTH or settings.max_trials <= gpus:
        return ""
    # While one trial is idle, the steps of the others should fill the time.
    for jobs in range(min(MOST_SHARING, 1 + -(-int(idle_s) // int(computing_s))), 1, -1):
        if memory := _shared_memory(study, first, jobs):
            return (
                f"start and end are about {share:.0%} of a trial's time: with --set resources.trials_per_gpu={jobs} "
                f"--concurrent {jobs * gpus} a GPU computes meanwhile; a trial then has {memory[1]:.1f} GiB of it and "
                f"needs about {memory[0]:.1f}"
            )
    return ""


def _shared_memory(study: Study, first: Path, jobs: int) -> tuple[float, float] | None:
    """GiB that a training needs, and GiB available to each of `jobs` on a GPU; None if that is impossible."""
    settings = study.settings
    place = settings.resources.model_copy(update={"trials_per_gpu": jobs})
    context = Inputs(first, "train", settings.platform, resources=settings.resources, at_launch=True)
    try:
        limit_gib = memory_share(study.folder, settings.model_copy(update={"resources": place}), study.specs)
        peak_gib = None if limit_gib is None else peak_within(context, limit_gib)
    except (ProblemError, Skip):
        return None
    return None if limit_gib is None or peak_gib is None else (peak_gib, limit_gib)


def lines(estimate: Mapping[str, Any]) -> list[str]:
    """Format an estimate for display."""
    count, trainings, reruns = estimate["trials"], estimate["full_trainings"], estimate["re_runs"]
    text = [f"{count} trials, worth {trainings:g} whole trainings, and {reruns} re-runs"]
    if "hours" in estimate:
        total = f"about {estimate['hours']:.2f} h and {estimate['gpu_hours']:.2f} GPU hours in all"
        text.append(f"{total}; a training {estimate['hours_of_one']:.2f} h, from {estimate['from']}")
    else:
        text.append(f"time: from {estimate['from']}; status shows it after the first trial")
    if "gpu_memory_gib" in estimate:
        text.append(f"trials share GPUs: each has {estimate['gpu_memory_gib']:.1f} GiB of one")
    if "not_compared" in estimate:
        text.append(
            f"not checked for shared media, because they cannot be read here: {', '.join(estimate['not_compared'])}"
        )
    if "advice" in estimate:
        text.append(estimate["advice"])
    if "disk_bytes" in estimate:
        text.append(f"disk: at most about {estimate['disk_bytes'] / 1e9:.2f} GB at one time")
    return text
