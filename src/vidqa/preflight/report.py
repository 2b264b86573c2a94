"""Runs the checks of preflight or of a launch, and reports their results as text and JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.core.actions import resolve
from vidqa.core.cli import USAGE
from vidqa.core.problem import Exit, Problem, ProblemError, bounded
from vidqa.data import storage
from vidqa.data.problems import MEDIA_MISSING
from vidqa.data.storage import hub
from vidqa.jobs.job_spec import JobSpec, load_job_spec
from vidqa.jobs.problems import NOT_SEEN
from vidqa.jobs.resources import Resources
from vidqa.preflight import launch_gate
from vidqa.preflight.gpus import Declared
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.launch_gate import CachedReport, ReportKey
from vidqa.preflight.registry import CHECKS, GROUPS, LEAKS, AtLaunch, Check, CheckResult, run_check
from vidqa.preflight.summary import summary
from vidqa.spec.keys import value_at
from vidqa.spec.layers import action_of
from vidqa.spec.problems import MODEL_MAX_LENGTH

STATUS_BY_SEVERITY = ("error", "warning", "blocked", "ok", "skipped")  # a group has the worst status of its checks
STATUS_ORDER = ("ok", "skipped", "warning", "blocked", "error")  # order in the text
PLATFORMS_OF_THIS_MACHINE = ("local", "docker")  # platforms whose jobs run on the machine that launches them


@dataclass(frozen=True)
class Report:
    """The results of preflight. Without an error the job may be launched."""

    action: str
    checks: list[CheckResult]
    facts: dict[str, Any]  # measurements and predictions of the checks, as in references/preflight.md

    @property
    def problems(self) -> list[Problem]:
        """Every problem once. If there is no error among them, also the errors that blocked a check, which are those of
        a group that was not run."""
        problems = list(dict.fromkeys(problem for result in self.checks for problem in result.problems))
        if not _has_error(problems):
            problems += dict.fromkeys(p for result in self.checks for p in bounded(list(result.blocked_by)))
        return problems

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return {"action": self.action, "groups": [self._group(name) for name in GROUPS], "facts": self.facts}

    def _group(self, name: str) -> dict[str, Any]:
        checks = [result for result in self.checks if result.group == name]
        rows = [
            {"name": c.name, "status": c.status, "why": c.why, "problems": [p.as_dict() for p in c.problems]}
            for c in checks
        ]
        status = next(
            (status for status in STATUS_BY_SEVERITY if any(c.status == status for c in checks)), "not asked for"
        )
        return {"name": name, "status": status, "checks": rows}

    @property
    def text(self) -> str:
        """The verdict, one line per group with its problems, and the summary of facts."""
        counts = Counter(problem.severity for problem in self.problems)
        rows = ", ".join(f"{counts[kind]} {kind}{'s' * (counts[kind] != 1)}" for kind in ("error", "warning"))
        lines = [f"{self.action}: {'not ready' if counts['error'] else 'ready'}; {rows}", ""]
        for name in GROUPS:
            lines += self._group_lines([result for result in self.checks if result.group == name])
        return "\n".join([*lines, "", *(f"{what:<16} {text}" for what, text in summary(self.facts))]).rstrip()

    @staticmethod
    def _group_lines(checks: list[CheckResult]) -> Iterator[str]:
        if not checks:
            return
        counts = Counter(result.status for result in checks)
        yield f"{checks[0].group:<16} " + ", ".join(f"{counts[s]} {s}" for s in STATUS_ORDER if counts[s])
        reasons: dict[tuple[str, str], list[str]] = {}
        for result in checks:
            if result.status != "ok":
                many = f"{len(result.problems)} problem{'s' * (len(result.problems) != 1)}"
                reasons.setdefault((result.status, result.why or many), []).append(result.name)
        yield from (f"  {status:<14} {', '.join(names)}: {why}" for (status, why), names in reasons.items())


def preflight(
    spec_path: Path,
    platform: str,
    action: str | None = None,
    group: str | None = None,
    probe_sample: int | None = None,
    **options: Any,
) -> Report:
    """Run the checks of `group`, all for None; LEAKS stands for those that compare two sets. `probe_sample` is the
    number of media to decode; `options` are further fields of Inputs: declared, resources, engine, evaluate_spec,
    kpi_root. A report of all groups is cached for the launch. Raises ProblemError if the file is not a spec, and USAGE
    for an evaluation of what none evaluates; all other problems are in the report."""
    inputs = Inputs(spec_path, action or action_of(spec_path), platform, probe_sample, **options)
    if (inputs.evaluate_spec or inputs.kpi_root) and not inputs.declared_action.evaluated_by:
        where, message = "--evaluate-spec, --kpi-root", f"nothing evaluates what {inputs.action} makes"
        raise USAGE.error(where, message, "leave it out, or name the spec of a training with it")
    # First: a file that changes during the checks makes the report stale.
    key = _report_key(inputs) if group is None else None
    chosen = [c for c in _all_checks(inputs) if group in (None, c.group) or (group == LEAKS and c.leaks)]
    report = _run_checks(inputs, chosen)
    if key:
        decoding = [
            problem for result in report.checks if result.name == "planned frames" for problem in result.problems
        ]
        passed = not _has_error(report.problems)
        cached = CachedReport(
            passed=passed,
            decoded=True,
            lasting=[p for p in decoding if p.severity == "error" and p.exit_code == Exit.INPUT],
            warnings=[p for p in report.problems if p.severity == "warning"],
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
    failed_report: CachedReport | None,
    *,
    fetch: bool,
) -> list[Problem]:
    """The errors and warnings before a launch. `failed_report` is the report of a preflight that did not pass: its
    options, and its errors from decoding, still apply. With `fetch` the launch downloads the job's inputs, and a report
    without errors is cached."""
    inputs = Inputs(
        spec_path, job_spec.action, platform, resources=resources, engine=engine, job_spec=job_spec, at_launch=True
    )
    inputs.elsewhere = platform not in PLATFORMS_OF_THIS_MACHINE
    if failed_report:
        inputs.declared = Declared(failed_report.gpu_count, failed_report.gpu_memory_gb, failed_report.gpu_arch)
        inputs.evaluate_spec = Path(failed_report.evaluate_spec) if failed_report.evaluate_spec else None
        inputs.kpi_root = Path(failed_report.kpi_root) if failed_report.kpi_root else None
    if inputs.elsewhere and not inputs.declared.anything:
        inputs.gpus = []  # the GPUs of this machine are not the job's
    unseen = _problems_of_unseen(inputs, job_spec, fetch)
    key = None if unseen else _report_key(inputs)
    report = _run_checks(inputs, (check for check in _all_checks(inputs) if _runs_at_launch(check, inputs, job_spec)))
    problems = [*report.problems, *unseen, *(failed_report.lasting if failed_report else [])]
    if inputs.elsewhere:
        problems = _with_media_severity(problems, inputs)
    if fetch and key and not _has_error(problems):
        launch_gate.store(key, CachedReport(passed=True, decoded=False, lasting=[]), inputs.engine_plan)
    return list(dict.fromkeys(problems))


def _all_checks(inputs: Inputs) -> list[Check]:
    return [*CHECKS, *resolve(inputs.declared_action.checks)]


def _run_checks(inputs: Inputs, checks: Iterable[Check]) -> Report:
    results = [run_check(check, inputs) for check in checks]
    return Report(inputs.action, [_without_length_warning(result, inputs) for result in results], inputs.facts)


def _has_error(problems: Iterable[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def _report_key(inputs: Inputs) -> ReportKey | None:
    """The key under which the report is cached; None if inputs are missing, so that no launch finds it."""
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


def _without_length_warning(result: CheckResult, inputs: Inputs) -> CheckResult:
    """The result without the warning about a short model_max_length, if every sample fits anyway."""
    longest = inputs.facts.get("train", {}).get("tokens_per_sample")
    if result.group != "spec" or longest is None or inputs.offline_model or not result.problems:
        return result
    problems = [problem for problem in result.problems if problem.code != MODEL_MAX_LENGTH.name]
    return replace(result, problems=problems, status=result.status if problems else "ok")


def _runs_at_launch(check: Check, inputs: Inputs, job_spec: JobSpec) -> bool:
    """Whether the condition of a check for running at a launch (AtLaunch) holds."""
    condition = check.at_launch
    if condition is AtLaunch.HERE:
        return inputs.platform == "local" and inputs.engine == "vidqa"
    if condition is AtLaunch.NEW_OUTPUT and job_spec.resumes:  # its checkpoints exist
        return False
    if condition in (AtLaunch.OUTPUT, AtLaunch.NEW_OUTPUT) and inputs.elsewhere:
        return inputs.output_dir.is_dir() or inputs.output_dir.parent.is_dir()
    if condition is AtLaunch.CHECKPOINT:
        return not _problems_of_unseen_checkpoint(inputs, job_spec)
    return condition is not AtLaunch.NEVER


def _problems_of_unseen(inputs: Inputs, job_spec: JobSpec, fetch: bool) -> list[Problem]:
    """Warnings about input files of the job that are not on this machine. Sets `inputs.missing`, so that checks that
    need them are skipped, and otherwise `inputs.models` to the folders that the launch has resolved."""
    models = [p for key, name in job_spec.models.items() for p in _problems_of_unseen_path(inputs, job_spec, key, name)]
    if not models:
        inputs.models = {key: Path(str(value_at(job_spec.resolved, key))) for key in job_spec.models}
    keys = [key for data in job_spec.declared.data for key in (data.annotations, data.media)]
    sets: list[Problem] = []
    for key in keys:
        name = str(value_at(job_spec.spec, key))
        if storage.is_remote(name) and not fetch:
            sets.append(NOT_SEEN.at(key, f"{name} is fetched by the launch", severity="warning"))
        elif name:
            sets += _problems_of_unseen_path(inputs, job_spec, key, name)
    media = [] if sets or not inputs.elsewhere else _problems_of_unseen_media(inputs)
    parts = {"models": models, "annotations": sets, "headers": media}
    inputs.missing |= {part: problems for part, problems in parts.items() if problems}
    return [*models, *sets, *media, *_problems_of_unseen_checkpoint(inputs, job_spec)]


def _problems_of_unseen_checkpoint(inputs: Inputs, job_spec: JobSpec) -> list[Problem]:
    resuming = job_spec.declared.resuming
    return (
        _problems_of_unseen_path(inputs, job_spec, resuming.key, job_spec.start) if resuming and job_spec.start else []
    )


def _problems_of_unseen_path(inputs: Inputs, job_spec: JobSpec, key: str, name: str) -> list[Problem]:
    """A warning if the path of `key` is not on this machine, or on the hub. `name` is its value in the spec."""
    path = str(value_at(job_spec.resolved, key))
    if os.path.exists(path) or not (hub.is_hub_name(name) or inputs.elsewhere):
        return []
    why = f"{name} is fetched by the launch" if hub.is_hub_name(name) else f"{path} is not on this machine"
    return [NOT_SEEN.at(key, why, severity="warning")]


def _problems_of_unseen_media(inputs: Inputs) -> list[Problem]:
    """A warning if media folders are not on this machine. A missing file in an existing folder is an error."""
    try:
        paths = {ref.path for record in inputs.records for ref in record.media}
    except (ProblemError, Skip):
        return []
    missing_folders = {os.path.dirname(path) for path in paths if not os.path.exists(path)}
    folders = sorted(folder for folder in missing_folders if not os.path.isdir(folder))
    if not folders:
        return []
    message = f"media are in {len(folders)} folders that are not on this machine, such as {folders[0]}"
    return [NOT_SEEN.at("media", message, severity="warning")]


def _with_media_severity(problems: list[Problem], inputs: Inputs) -> list[Problem]:
    """The problems with MEDIA_MISSING as severe as a bad sample, or without it if media are on another machine."""
    if "headers" in inputs.missing:
        return [problem for problem in problems if problem.code != MEDIA_MISSING.name]
    return [
        replace(problem, severity=inputs.bad_sample_severity) if problem.code == MEDIA_MISSING.name else problem
        for problem in problems
    ]
