"""The checks of a launch without a passed preflight: everything that needs no decoding."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from vidqa import storage
from vidqa.actions import resolve
from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset.problems import MEDIA_MISSING
from vidqa.jobs.job_spec import JobSpec
from vidqa.jobs.launch import Resources
from vidqa.preflight import kept
from vidqa.preflight._base import Check, Context, Skip, carry_out
from vidqa.preflight.gpus import Declared
from vidqa.preflight.kept import Inputs, Kept
from vidqa.preflight.problems import NOT_SEEN
from vidqa.preflight.report import Report, settle_length
from vidqa.preflight.table import CHECKS, NOT_AT_LAUNCH, OF_THE_OUTPUT, OF_THIS_MACHINE
from vidqa.spec.keys import value_at
from vidqa.storage import hub

HERE = ("local", "docker")  # platforms whose jobs run on the machine that launches them


def look(
    job_spec: JobSpec,
    spec_path: Path,
    platform: str,
    resources: Resources,
    engine: str,
    earlier: Kept | None,
    *,
    fetch: bool,
) -> list[Problem]:
    """The problems of a job that is to be launched, errors and warnings. `earlier` is the report of a preflight that
    did not pass; what it found by decoding still holds. With `fetch` a report without errors is kept."""
    context = _context(job_spec, spec_path, platform, resources, engine, earlier)
    unseen = _unseen(context, job_spec, fetch)
    seen = None if unseen else _inputs(job_spec, context)
    every = [*CHECKS, *resolve(context.declared_action.checks)]
    checks = [carry_out(check, context) for check in every if _concerns(check, context, job_spec)]
    report = Report(context.action, [settle_length(checked, context) for checked in checks], context.facts)
    problems = [*report.problems, *unseen, *(earlier.lasting if earlier else [])]
    if context.elsewhere:
        problems = _of_missing_media(problems, context)
    if fetch and seen and not any(problem.severity == "error" for problem in problems):
        kept.keep(seen, Kept(passed=True, decoded=False, lasting=[]), context.plan_to_keep)
    return list(dict.fromkeys(problems))


def _context(
    job_spec: JobSpec, spec_path: Path, platform: str, resources: Resources, engine: str, earlier: Kept | None
) -> Context:
    """A context with the options of the earlier preflight, so that both check the same."""
    context = Context(spec_path, job_spec.action, platform, resources=resources, engine=engine, at_launch=True)
    context.elsewhere = platform not in HERE
    if earlier:
        context.declared = Declared(earlier.gpu_count, earlier.gpu_memory_gb, earlier.gpu_arch)
        context.evaluate_spec = Path(earlier.evaluate_spec) if earlier.evaluate_spec else None
        context.kpi_root = Path(earlier.kpi_root) if earlier.kpi_root else None
    if context.elsewhere and not context.declared.anything:
        context.gpus = []  # the GPUs of this machine are not the job's
    return context


def _concerns(check: Check, context: Context, job_spec: JobSpec) -> bool:
    """Whether a launch carries out this check: not for another machine, and not the disk check for a run whose saves
    exist."""
    if check.name in NOT_AT_LAUNCH or (check.name == "disk" and job_spec.resumes):
        return False
    if check.name in OF_THE_OUTPUT and context.elsewhere:
        folder = context.output_dir
        return folder.is_dir() or folder.parent.is_dir()
    if check.name == "checkpoint to resume":
        return not _unseen_checkpoint(context, job_spec)
    return check.name not in OF_THIS_MACHINE or (context.platform == "local" and context.engine == "vidqa")


def _inputs(job_spec: JobSpec, context: Context) -> Inputs | None:
    """What the checks are about to read; None where the annotations cannot be read."""
    try:
        return kept.inputs(job_spec, context.platform, context.engine, context.plans_with, lambda: context.records)
    except (ProblemError, Skip):
        return None


def _unseen(context: Context, job_spec: JobSpec, fetch: bool) -> list[Problem]:
    """Warnings about what the job reads and this machine does not see. Checks that need it are skipped; models are
    those that the launch found."""
    models = [
        problem for key, name in job_spec.models.items() for problem in _unseen_path(context, job_spec, key, name)
    ]
    if not models:
        context.models = {key: Path(str(value_at(job_spec.resolved, key))) for key in job_spec.models}
    written = {
        key: str(value_at(job_spec.spec, key))
        for data in job_spec.declared.data
        for key in (data.annotations, data.media)
    }
    to_fetch = {key: name for key, name in written.items() if storage.is_remote(name) and not fetch}
    sets = [NOT_SEEN.at(key, f"{name} is fetched by the launch", severity="warning") for key, name in to_fetch.items()]
    others = {key: name for key, name in written.items() if name and key not in to_fetch}
    sets += [problem for key, name in others.items() for problem in _unseen_path(context, job_spec, key, name)]
    media = [] if sets or not context.elsewhere else _unseen_media(context)
    parts = {"models": models, "annotations": sets, "headers": media}
    context.missing |= {part: problems for part, problems in parts.items() if problems}
    return [*models, *sets, *media, *_unseen_checkpoint(context, job_spec)]


def _unseen_checkpoint(context: Context, job_spec: JobSpec) -> list[Problem]:
    resuming = job_spec.declared.resuming
    return _unseen_path(context, job_spec, resuming.key, job_spec.start) if resuming and job_spec.start else []


def _unseen_path(context: Context, job_spec: JobSpec, key: str, name: str) -> list[Problem]:
    """A warning for a path that only the job will see. `name` is the value as written."""
    path = str(value_at(job_spec.resolved, key))
    if os.path.exists(path) or not (hub.is_hub_name(name) or context.elsewhere):
        return []
    why = f"{name} is fetched by the launch" if hub.is_hub_name(name) else f"{path} is not on this machine"
    return [NOT_SEEN.at(key, why, severity="warning")]


def _unseen_media(context: Context) -> list[Problem]:
    """Media whose folders are not here. A missing file in a folder that is here is an error, not a warning."""
    try:
        paths = {ref.path for record in context.records for ref in record.media}
    except (ProblemError, Skip):
        return []
    absent = {os.path.dirname(path) for path in paths if not os.path.exists(path)}
    folders = sorted(folder for folder in absent if not os.path.isdir(folder))
    if not folders:
        return []
    message = f"media are in {len(folders)} folders that are not on this machine, such as {folders[0]}"
    return [NOT_SEEN.at("media", message, severity="warning")]


def _of_missing_media(problems: list[Problem], context: Context) -> list[Problem]:
    """Missing media are bad samples, unless their folder is on another machine."""
    if "headers" in context.missing:
        return [problem for problem in problems if problem.code != MEDIA_MISSING.name]
    return [
        replace(problem, severity=context.bad_samples_are) if problem.code == MEDIA_MISSING.name else problem
        for problem in problems
    ]
