"""Runs the checks, of preflight or of a launch, and reports their results for people and programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.core.actions import resolve
from vidqa.core.problem import Exit, Problem, ProblemError, bounded
from vidqa.data import storage
from vidqa.data.problems import MEDIA_MISSING
from vidqa.data.storage import hub
from vidqa.jobs.job_spec import JobSpec, load_job_spec
from vidqa.jobs.launch import Resources
from vidqa.jobs.problems import NOT_SEEN
from vidqa.preflight import launch_gate
from vidqa.preflight.gpus import Declared
from vidqa.preflight.inputs import DataInputs, Skip
from vidqa.preflight.launch_gate import CachedReport, ReportKey
from vidqa.preflight.registry import CHECKS, GROUPS, LEAKS, AtLaunch, Check, CheckResult, run_check
from vidqa.preflight.summary import summary
from vidqa.spec.keys import value_at
from vidqa.spec.layers import action_of
from vidqa.spec.problems import MODEL_MAX_LENGTH

ORDER = ("error", "warning", "blocked", "ok", "skipped")  # of a group: the first that a check has
SHOWN = ("ok", "skipped", "warning", "blocked", "error")
HERE = ("local", "docker")  # platforms whose jobs run on the machine that launches them


@dataclass(frozen=True)
class Report:
    """The results of preflight. Without an error the job may be launched."""

    action: str
    checks: list[CheckResult]
    facts: dict[str, Any]

    @property
    def problems(self) -> list[Problem]:
        """Every problem once. If a check was blocked by an error that no check of the chosen group reports, that error
        is included."""
        problems = list(dict.fromkeys(problem for checked in self.checks for problem in checked.problems))
        if not _has_error(problems):
            problems += dict.fromkeys(p for checked in self.checks for p in bounded(list(checked.blocked_by)))
        return problems

    def as_dict(self) -> dict[str, Any]:
        return {"action": self.action, "groups": [self._group(name) for name in GROUPS], "facts": self.facts}

    def _group(self, name: str) -> dict[str, Any]:
        checks = [checked for checked in self.checks if checked.group == name]
        shown = [
            {"name": c.name, "status": c.status, "why": c.why, "problems": [p.as_dict() for p in c.problems]}
            for c in checks
        ]
        status = next((status for status in ORDER if any(c.status == status for c in checks)), "not asked for")
        return {"name": name, "status": status, "checks": shown}

    @property
    def text(self) -> str:
        """The verdict, one line per group with its problems, and the summary of facts."""
        counts = Counter(problem.severity for problem in self.problems)
        shown = ", ".join(f"{counts[kind]} {kind}{'s' * (counts[kind] != 1)}" for kind in ("error", "warning"))
        lines = [f"{self.action}: {'not ready' if counts['error'] else 'ready'}; {shown}", ""]
        for name in GROUPS:
            lines += self._group_lines([checked for checked in self.checks if checked.group == name])
        return "\n".join([*lines, "", *(f"{what:<16} {text}" for what, text in summary(self.facts))]).rstrip()

    @staticmethod
    def _group_lines(checks: list[CheckResult]) -> Iterator[str]:
        if not checks:
            return
        counts = Counter(checked.status for checked in checks)
        yield f"{checks[0].group:<16} " + ", ".join(f"{counts[s]} {s}" for s in SHOWN if counts[s])
        reasons: dict[tuple[str, str], list[str]] = {}
        for checked in checks:
            if checked.status != "ok":
                many = f"{len(checked.problems)} problem{'s' * (len(checked.problems) != 1)}"
                reasons.setdefault((checked.status, checked.why or many), []).append(checked.name)
        yield from (f"  {status:<14} {', '.join(names)}: {why}" for (status, why), names in reasons.items())


def preflight(
    spec_path: Path,
    platform: str,
    action: str | None = None,
    group: str | None = None,
    probe_sample: int | None = None,
    **more: Any,
) -> Report:
    """Run every check (of one group, or those that compare sets). `more` are further fields of RunInputs: declared,
    resources, engine, evaluate_spec, kpi_root. A report of all groups is cached for the launch. Raises ProblemError
    only where the spec is not a spec at all."""
    inputs = DataInputs(spec_path, action or action_of(spec_path), platform, probe_sample, **more)
    key = _key(inputs) if group is None else None  # first: a change during the checks must make the report stale
    report = _run(inputs, (c for c in _every(inputs) if group in (None, c.group) or (group == LEAKS and c.leaks)))
    if key:
        decoding = [
            problem for checked in report.checks if checked.name == "planned frames" for problem in checked.problems
        ]
        passed = not _has_error(report.problems)
        cached = CachedReport(
            passed=passed,
            decoded=True,
            lasting=[p for p in decoding if p.severity == "error" and p.exit_code == Exit.INPUT],
            evaluate_spec=str(inputs.evaluate_spec.absolute()) if inputs.evaluate_spec else None,
            kpi_root=str(inputs.kpi_root.absolute()) if inputs.kpi_root else None,
            **asdict(inputs.declared),
        )
        launch_gate.store(key, cached, inputs.engine_plan if passed else None)
    return report


def check_at_launch(
    job_spec: JobSpec,
    spec_path: Path,
    platform: str,
    resources: Resources,
    engine: str,
    earlier: CachedReport | None,
    *,
    fetch: bool,
) -> list[Problem]:
    """The problems of a job that is to be launched, errors and warnings. `earlier` is the report of a preflight that
    did not pass: its options and what it found by decoding still hold. With `fetch` a report without errors is
    cached."""
    inputs = DataInputs(
        spec_path, job_spec.action, platform, resources=resources, engine=engine, job_spec=job_spec, at_launch=True
    )
    inputs.elsewhere = platform not in HERE
    if earlier:
        inputs.declared = Declared(earlier.gpu_count, earlier.gpu_memory_gb, earlier.gpu_arch)
        inputs.evaluate_spec = Path(earlier.evaluate_spec) if earlier.evaluate_spec else None
        inputs.kpi_root = Path(earlier.kpi_root) if earlier.kpi_root else None
    if inputs.elsewhere and not inputs.declared.anything:
        inputs.gpus = []  # the GPUs of this machine are not the job's
    unseen = _unseen(inputs, job_spec, fetch)
    key = None if unseen else _key(inputs)
    report = _run(inputs, (check for check in _every(inputs) if _runs_at_launch(check, inputs, job_spec)))
    problems = [*report.problems, *unseen, *(earlier.lasting if earlier else [])]
    if inputs.elsewhere:
        problems = _settle_missing_media(problems, inputs)
    if fetch and key and not _has_error(problems):
        launch_gate.store(key, CachedReport(passed=True, decoded=False, lasting=[]), inputs.engine_plan)
    return list(dict.fromkeys(problems))


def _every(inputs: DataInputs) -> list[Check]:
    return [*CHECKS, *resolve(inputs.declared_action.checks)]


def _run(inputs: DataInputs, checks: Iterable[Check]) -> Report:
    results = [run_check(check, inputs) for check in checks]
    return Report(inputs.action, [_settle_length(checked, inputs) for checked in results], inputs.facts)


def _has_error(problems: Iterable[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def _key(inputs: DataInputs) -> ReportKey | None:
    """The inputs of the report; None where some are missing, so that no launch can match it."""
    try:
        job_spec = inputs.job_spec or load_job_spec(
            inputs.action,
            inputs.spec_path,
            fetch=True,
            target=inputs.target,
            settings=inputs.site,
            folders=inputs.models,
        )
        return launch_gate.key_of(
            job_spec, inputs.platform, inputs.engine, inputs.engine_planner, lambda: inputs.records
        )
    except (ProblemError, Skip):
        return None


def _settle_length(checked: CheckResult, inputs: DataInputs) -> CheckResult:
    """Drop the warning about a short model_max_length if every sample fits."""
    longest = inputs.facts.get("train", {}).get("tokens_per_sample")
    if checked.group != "spec" or longest is None or inputs.offline_model or not checked.problems:
        return checked
    problems = [problem for problem in checked.problems if problem.code != MODEL_MAX_LENGTH.name]
    return replace(checked, problems=problems, status=checked.status if problems else "ok")


def _runs_at_launch(check: Check, inputs: DataInputs, job_spec: JobSpec) -> bool:
    rule = check.at_launch
    if rule is AtLaunch.HERE:
        return inputs.platform == "local" and inputs.engine == "vidqa"
    if rule is AtLaunch.NEW_OUTPUT and job_spec.resumes:  # its saves exist
        return False
    if rule in (AtLaunch.OUTPUT, AtLaunch.NEW_OUTPUT) and inputs.elsewhere:
        return inputs.output_dir.is_dir() or inputs.output_dir.parent.is_dir()
    if rule is AtLaunch.CHECKPOINT:
        return not _unseen_checkpoint(inputs, job_spec)
    return rule is not AtLaunch.NEVER


def _unseen(inputs: DataInputs, job_spec: JobSpec, fetch: bool) -> list[Problem]:
    """Warnings about what the job reads and this machine does not see. Checks that need it are skipped; models are
    those that the launch has resolved."""
    models = [p for key, name in job_spec.models.items() for p in _unseen_path(inputs, job_spec, key, name)]
    if not models:
        inputs.models = {key: Path(str(value_at(job_spec.resolved, key))) for key in job_spec.models}
    keys = [key for data in job_spec.declared.data for key in (data.annotations, data.media)]
    sets: list[Problem] = []
    for key in keys:
        name = str(value_at(job_spec.spec, key))
        if storage.is_remote(name) and not fetch:
            sets.append(NOT_SEEN.at(key, f"{name} is fetched by the launch", severity="warning"))
        elif name:
            sets += _unseen_path(inputs, job_spec, key, name)
    media = [] if sets or not inputs.elsewhere else _unseen_media(inputs)
    parts = {"models": models, "annotations": sets, "headers": media}
    inputs.missing |= {part: problems for part, problems in parts.items() if problems}
    return [*models, *sets, *media, *_unseen_checkpoint(inputs, job_spec)]


def _unseen_checkpoint(inputs: DataInputs, job_spec: JobSpec) -> list[Problem]:
    resuming = job_spec.declared.resuming
    return _unseen_path(inputs, job_spec, resuming.key, job_spec.start) if resuming and job_spec.start else []


def _unseen_path(inputs: DataInputs, job_spec: JobSpec, key: str, name: str) -> list[Problem]:
    """A warning for a path that only the job will see. `name` is the value as written."""
    path = str(value_at(job_spec.resolved, key))
    if os.path.exists(path) or not (hub.is_hub_name(name) or inputs.elsewhere):
        return []
    why = f"{name} is fetched by the launch" if hub.is_hub_name(name) else f"{path} is not on this machine"
    return [NOT_SEEN.at(key, why, severity="warning")]


def _unseen_media(inputs: DataInputs) -> list[Problem]:
    """Media whose folders are not here. A missing file in a folder that is here is an error, not a warning."""
    try:
        paths = {ref.path for record in inputs.records for ref in record.media}
    except (ProblemError, Skip):
        return []
    absent = {os.path.dirname(path) for path in paths if not os.path.exists(path)}
    folders = sorted(folder for folder in absent if not os.path.isdir(folder))
    if not folders:
        return []
    message = f"media are in {len(folders)} folders that are not on this machine, such as {folders[0]}"
    return [NOT_SEEN.at("media", message, severity="warning")]


def _settle_missing_media(problems: list[Problem], inputs: DataInputs) -> list[Problem]:
    """Missing media are bad samples, unless their folder is on another machine."""
    if "headers" in inputs.missing:
        return [problem for problem in problems if problem.code != MEDIA_MISSING.name]
    return [
        replace(problem, severity=inputs.bad_sample_severity) if problem.code == MEDIA_MISSING.name else problem
        for problem in problems
    ]
