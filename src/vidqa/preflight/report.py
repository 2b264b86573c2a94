"""Runs the checks and reports their results, for people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.actions import resolve
from vidqa.contract.problem import Exit, Problem, ProblemError, bounded
from vidqa.jobs.job_spec import load_job_spec
from vidqa.preflight import kept
from vidqa.preflight._base import Checked, Context, Skip, carry_out
from vidqa.preflight.kept import Inputs, Kept
from vidqa.preflight.summary import summary
from vidqa.preflight.table import CHECKS, GROUPS, LEAKS
from vidqa.spec.action import action_of
from vidqa.spec.problems import MODEL_MAX_LENGTH

ORDER = ("error", "warning", "blocked", "ok", "skipped")  # of a group: the first that a check has

SHOWN = ("ok", "skipped", "warning", "blocked", "error")


@dataclass(frozen=True)
class Report:
    """The results of preflight. Without an error the job may be launched."""

    action: str
    checks: list[Checked]
    facts: dict[str, Any]

    @property
    def problems(self) -> list[Problem]:
        """Every problem once. If a check was blocked by an error that no check of the chosen group reports, that error
        is included."""
        found = list(dict.fromkeys(problem for checked in self.checks for problem in checked.problems))
        if not any(problem.severity == "error" for problem in found):
            found += dict.fromkeys(problem for checked in self.checks for problem in bounded(list(checked.blocked_by)))
        return found

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
        lines = [self._verdict(), ""]
        for name in GROUPS:
            lines += self._group_lines([checked for checked in self.checks if checked.group == name])
        return "\n".join([*lines, "", *(f"{what:<16} {text}" for what, text in summary(self.facts))]).rstrip()

    def _verdict(self) -> str:
        counts = Counter(problem.severity for problem in self.problems)
        shown = ", ".join(f"{counts[kind]} {kind}{'s' * (counts[kind] != 1)}" for kind in ("error", "warning"))
        return f"{self.action}: {'not ready' if counts['error'] else 'ready'}; {shown}"

    @staticmethod
    def _group_lines(checks: list[Checked]) -> Iterator[str]:
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
    """Run every check (of one group, or those that find leaks). `more` are further fields of Context: declared,
    resources, engine, evaluate_spec, kpi_root. A report of all groups is kept for the launch. Raises ProblemError only
    where the spec is not a spec at all."""
    context = Context(spec_path, action or action_of(spec_path), platform, probe_sample, **more)
    seen = _inputs(context) if group is None else None  # first: a change during the checks must make the report stale
    every = [*CHECKS, *resolve(context.declared_action.checks)]
    chosen = (check for check in every if group in (None, check.group) or (group == LEAKS and check.leaks))
    checks = [carry_out(check, context) for check in chosen]
    report = Report(context.action, [settle_length(checked, context) for checked in checks], context.facts)
    if seen:
        _keep(seen, report, context)
    return report


def _inputs(context: Context) -> Inputs | None:
    """The inputs of the report; None where some are missing, so that no launch can match it."""
    try:
        resolved = {"target": context.target, "settings": context.site, "folders": context.models}
        job_spec = load_job_spec(context.action, context.spec_path, fetch=True, **resolved)
        return kept.inputs(job_spec, context.platform, context.engine, context.plans_with, lambda: context.records)
    except (ProblemError, Skip):
        return None


def _keep(seen: Inputs, report: Report, context: Context) -> None:
    decoding = [checked for checked in report.checks if checked.name == "planned frames"]
    errors = [problem for checked in decoding for problem in checked.problems if problem.severity == "error"]
    passed = not any(problem.severity == "error" for problem in report.problems)
    kept.keep(
        seen,
        Kept(
            passed=passed,
            decoded=True,
            lasting=[problem for problem in errors if problem.exit_code == Exit.INPUT],
            evaluate_spec=str(context.evaluate_spec.absolute()) if context.evaluate_spec else None,
            kpi_root=str(context.kpi_root.absolute()) if context.kpi_root else None,
            **asdict(context.declared),
        ),
        context.plan_to_keep if passed else None,
    )


def settle_length(checked: Checked, context: Context) -> Checked:
    """Drop the warning about a short model_max_length if every sample fits."""
    longest = context.facts.get("train", {}).get("tokens_per_sample")
    if checked.group != "spec" or longest is None or context.stand_in or not checked.problems:
        return checked
    kept = [problem for problem in checked.problems if problem.code != MODEL_MAX_LENGTH.name]
    return replace(checked, problems=kept, status=checked.status if kept else "ok")
