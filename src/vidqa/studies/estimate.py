"""What a study will take in time, GPU hours and disk: the estimate of a trial, as preflight or earlier jobs give it,
times the trials that there will be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidqa.contract.problem import Problem, ProblemError
from vidqa.contract.run_folder import RunFolder
from vidqa.jobs import cost, records
from vidqa.platforms._base import State
from vidqa.preflight.data_checks import apart
from vidqa.preflight.inputs import DataInputs, Skip
from vidqa.preflight.report import preflight
from vidqa.spec import total_steps
from vidqa.spec.samples import train_samples
from vidqa.studies import sharing
from vidqa.studies.study import Study
from vidqa.studies.study_problems import STUDY_BUDGET, STUDY_DISK

MEASURED_APART = (("train", "evaluation"), ("train", "test"), ("validation", "test"), ("evaluation", "test"))


def of_study(study: Study, first: Path) -> tuple[dict[str, Any], list[Problem]]:
    """The estimate, and the problems that preflight finds with the template's spec `first` and with the limits."""
    asked = study.settings
    report = preflight(first, asked.platform, "train", resources=asked.launch_resources)
    facts = report.facts
    trainings = full_trainings(study)
    reruns = asked.finals.reruns
    found: dict[str, Any] = {"trials": asked.max_trials, "full_trainings": round(trainings, 2), "re_runs": reruns}
    found |= _of_one(study, facts)
    if "hours_of_one" in found:
        many = trainings + reruns * study.whole / study.longest
        hours, gpu_hours = _at_one_time(study, found)
        found["hours"] = round(hours * many / min(asked.max_concurrent, asked.max_trials), 3)
        found["gpu_hours"] = round(gpu_hours * many, 3)
    if "checkpoint_bytes" in facts:
        found |= {"disk_bytes": _disk(study, facts), "free_bytes": facts.get("free_bytes")}
    if study.memory_gib is not None:
        found["gpu_memory_gib"] = study.memory_gib
    if said := sharing.advice(study, first, found):
        found["advice"] = said
    problems = [*report.problems, *_shared(study, first)]
    return found, [*problems, *_of_limits(study, found), *_of_disk(study, found)]


def _shared(study: Study, first: Path) -> list[Problem]:
    """What preflight says of sets that share media: what trials learn from with what measures them, and all that
    decides between them with the test."""
    asked = study.settings

    def seen(name: str | None) -> DataInputs:
        evaluated = study.folder / name if name else None
        return DataInputs(first, "train", asked.platform, evaluate_spec=evaluated, at_launch=True)

    try:
        sets = {part.name: part for part in seen(None).annotations}
        for role, name in (("evaluation", asked.evaluation), ("test", asked.test)):
            if name and (part := seen(name).kpi):
                sets[role] = replace(part, name=role)
    except (Skip, ProblemError):  # what cannot be read is named by the report, or by the evaluation's own preflight
        return []
    pairs = [(one, other) for one, other in MEASURED_APART if one in sets and other in sets]
    return [problem for one, other in pairs for problem in apart(seen(None), sets[one], sets[other])]


def full_trainings(study: Study) -> float:
    """How many whole trainings all trials are worth: with rungs, of as many trials as `reduction` one goes on."""
    asked, brackets = study.settings, study.algorithm.rungs
    total = 0.0
    for rungs in brackets:
        begun = asked.max_trials / len(brackets)
        for at, (before, steps) in enumerate(zip((0, *rungs), rungs, strict=False)):
            total += begun / asked.steps.reduction**at * (steps - before)
    return total / study.longest


def _of_one(study: Study, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hours of one whole training, and where the number is from."""
    time = facts.get("time") or {}
    shown = facts.get("total_steps") or 0
    whole = study.longest if study.by_steps else total_steps(study.trained, train_samples(study.trained) or 0) or shown
    if "hours" in time and shown:
        begin = time["start_s"] / 3600
        hours = begin + (time["hours"] - begin) * whole / shown
        gpu_hours = hours * facts.get("processes", 1)
        return {"hours_of_one": hours, "gpu_hours_of_one": gpu_hours, "start_hours": begin, "from": "preflight"}
    earlier = _earlier(study)
    if earlier is None or not whole:
        return {"from": "nothing yet: no GPU whose speed is known, and no earlier training of this model"}
    hours = earlier[0] * whole / 3600
    return {"hours_of_one": hours, "gpu_hours_of_one": hours * earlier[1], "from": f"job {earlier[2]}"}


def _at_one_time(study: Study, found: Mapping[str, Any]) -> tuple[float, float]:
    """Hours of a training among others, and its GPU hours: trials that share a GPU compute in turns, while others of
    them start or end."""
    each, whole = study.settings.resources.trials_per_gpu, found["hours_of_one"]
    hours = max(each * (whole - found.get("start_hours", 0.0)), whole)
    return hours, hours / each * found["gpu_hours_of_one"] / whole


def _earlier(study: Study) -> tuple[float, int, str] | None:
    """Seconds a step, GPUs and name of the newest complete training of this model on this platform."""
    for record in records.scan()[0]:
        fits = (record.action, record.platform, record.model) == (
            "train",
            study.settings.platform,
            study.base.policy.model_name_or_path,
        )
        steps = RunFolder(Path(record.run_dir)).read_status().get("step", 0) if fits else 0
        if steps and record.state == State.COMPLETE:
            return cost.running_s(record) / steps, record.processes if record.gpus else 0, record.job_id
    return None


def _disk(study: Study, facts: Mapping[str, Any]) -> int:
    """Bytes that lie there at one time at most."""
    asked = study.settings
    checkpoint, export = facts["checkpoint_bytes"], facts["export_bytes"]
    if asked.keep == "all":
        return asked.max_trials * facts["saves_kept"] * (checkpoint + export)
    running = asked.max_concurrent * facts["saves_kept"] * (checkpoint + export)
    paused = asked.max_trials * (checkpoint + export) if study.has_rungs else 0
    reruns = asked.finals.reruns * facts["saves_kept"] * (checkpoint + export)
    return running + paused + max(reruns, (asked.finals.top + 1) * facts["saves_kept"] * export)


def _of_limits(study: Study, found: Mapping[str, Any]) -> list[Problem]:
    """STUDY_BUDGET where not even the template and one other trial fit."""
    asked = study.settings
    if asked.max_trials < 2:
        return [STUDY_BUDGET.at("max_trials", f"{asked.max_trials} trial is the template's own")]
    if "hours_of_one" not in found:
        return []
    shortest = min(rungs[0] for rungs in study.algorithm.rungs) / study.longest
    two = 1 + shortest if study.has_rungs else 2
    problems = []
    gpu_hours, hours = two * found["gpu_hours_of_one"], two * found["hours_of_one"] / min(2, asked.max_concurrent)
    if asked.limits.gpu_hours is not None and gpu_hours > asked.limits.gpu_hours:
        message = f"two trials take about {gpu_hours:.2f} GPU hours; the limit is {asked.limits.gpu_hours:g}"
        problems.append(STUDY_BUDGET.at("limits.gpu_hours", message))
    if asked.limits.wall_hours is not None and hours > asked.limits.wall_hours:
        message = f"two trials take about {hours:.2f} hours; the limit is {asked.limits.wall_hours:g}"
        problems.append(STUDY_BUDGET.at("limits.wall_hours", message))
    return problems


def _of_disk(study: Study, found: Mapping[str, Any]) -> list[Problem]:
    needed, free = found.get("disk_bytes", 0), found.get("free_bytes")
    if free is None or needed <= free:
        return []
    message = f"about {needed / 1e9:.1f} GB at one time, {free / 1e9:.1f} GB free"
    return [STUDY_DISK.at(study.folder, message, severity="warning")]


def lines(found: Mapping[str, Any]) -> list[str]:
    """An estimate for a person."""
    work = (
        f"{found['trials']} trials, worth {found['full_trainings']:g} whole trainings, and {found['re_runs']} re-runs"
    )
    shown = [work]
    if "hours" in found:
        took = f"about {found['hours']:.2f} h and {found['gpu_hours']:.2f} GPU hours in all"
        shown.append(f"{took}; a training {found['hours_of_one']:.2f} h, from {found['from']}")
    else:
        shown.append(f"time: from {found['from']}; status shows it after the first trial")
    if "gpu_memory_gib" in found:
        shown.append(f"trials share GPUs: each has {found['gpu_memory_gib']:.1f} GiB of one")
    if "advice" in found:
        shown.append(found["advice"])
    if "disk_bytes" in found:
        shown.append(f"disk: at most about {found['disk_bytes'] / 1e9:.2f} GB at one time")
    return shown
