"""Carries out the checks and says what they found, for a person and for a program."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.preflight._base import Checked, Context, bounded, carry_out
from vidqa.preflight.table import CHECKS, GROUPS
from vidqa.problem import Problem
from vidqa.spec.problems import ACTION, MODEL_MAX_LENGTH

TRAIN_TABLES = {"train", "policy", "custom", "validation", "logging"}
EVALUATE_TABLES = {"dataset", "model", "task", "evaluation", "generation", "metrics", "results", "num_gpus", "vision"}
ORDER = ("error", "warning", "blocked", "ok", "skipped")


@dataclass(frozen=True)
class Report:
    """What preflight found. It is ready for a launch when no check found an error."""

    action: str
    checks: list[Checked]
    facts: dict[str, Any]

    @property
    def problems(self) -> list[Problem]:
        """Every problem once, though two checks may have met it. Where no check found the error that kept another from
        being carried out (only one group was asked for), that error is among them."""
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
        """One line per check, then the facts."""
        lines = []
        for checked in self.checks:
            found = f"{len(checked.problems)} problems" if checked.problems else checked.why
            lines.append(f"{checked.group:<12} {checked.name:<30} {checked.status:<8} {found}".rstrip())
        facts = (f"{name:<27} {json.dumps(value, ensure_ascii=False)}" for name, value in _flat(self.facts))
        return "\n".join([*lines, "", *facts])


def preflight(
    spec_path: Path,
    platform: str,
    action: str | None = None,
    group: str | None = None,
    probe_sample: int | None = None,
    **more: Any,
) -> Report:
    """Carry out every check (of one group). `more` are further fields of Context: declared, engine, evaluate_spec,
    kpi_root. Raises ProblemError only where the spec is not a spec at all."""
    context = Context(spec_path, action or action_of(spec_path), platform, probe_sample, **more)
    checks = [carry_out(check, context) for check in CHECKS if group in (None, check.group)]
    return Report(context.action, [_settle_length(checked, context) for checked in checks], context.facts)


def action_of(spec_path: Path) -> str:
    """The action whose tables a spec has. Raises SPEC_ACTION where it has those of both or of neither."""
    tables = {key.split(".")[0] for key in spec.read_layer(spec_path).table}
    scores = {"train": len(tables & TRAIN_TABLES), "evaluate": len(tables & EVALUATE_TABLES)}
    if scores["train"] == scores["evaluate"]:
        found = f"its tables ({', '.join(sorted(tables)) or 'none'}) are of no single action"
        raise ACTION.error(spec_path, found, "say --action train or --action evaluate")
    return max(scores, key=lambda action: scores[action])


def _settle_length(checked: Checked, context: Context) -> Checked:
    """A short model_max_length is no longer worth a warning once every sample is known to fit."""
    longest = context.facts.get("train", {}).get("tokens_per_sample")
    if checked.group != "spec" or longest is None or not checked.problems:
        return checked
    kept = [problem for problem in checked.problems if problem.code != MODEL_MAX_LENGTH.name]
    return replace(checked, problems=kept, status=checked.status if kept else "ok")


def _flat(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Facts of the sets as name.key, the long lists left to --json."""
    flat: list[tuple[str, Any]] = []
    for name, value in facts.items():
        if isinstance(value, dict) and "samples" in value:
            flat += [(f"{name}.{key}", inner) for key, inner in value.items() if key != "longest"]
        else:
            flat.append((name, value))
    return flat
