"""What a run of a study reached: metrics of a training at its best export, or of an evaluation; and its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidqa.contract.files import read_object
from vidqa.contract.run_folder import METRICS, TRAINER, RunFolder, read_checkpoint, read_metrics
from vidqa.automl.moves import Goal
from vidqa.automl.study_problems import STUDY_STEPS


def training_metrics(run_dir: Path) -> dict[str, Any]:
    """What a training measured of the export that it calls the best, else at its end; all that is finite."""
    try:
        rows = read_metrics(run_dir / METRICS)
    except OSError:
        return {}
    best = read_object(run_dir / "best.json").get("step")
    found: dict[str, Any] = {}
    for row in rows:
        found |= {name: value for name, value in row.items() if name not in ("step", "time")}
        if row["step"] == best and any(name.startswith("val/") for name in row):
            found |= {"best_step": best}
            break
    return found


def before_training(run_dir: Path) -> dict[str, Any]:
    """What validation measured before the first step, where it did."""
    try:
        rows = read_metrics(run_dir / METRICS)
    except OSError:
        return {}
    return next((_measures(row) for row in rows if row["step"] == 0 and "val/avg_loss" in row), {})


def evaluation_metrics(run_dir: Path) -> dict[str, Any]:
    """The numbers of metrics.json by dotted name, and the intervals and slices that reports show."""
    metrics = read_object(run_dir / "metrics.json")
    found = _numbers(metrics)
    kept: dict[str, Any] = {name: metrics[name] for name in ("accuracy_ci95", "headline", "by_kind") if name in metrics}
    return {**found, **kept, "run_dir": str(run_dir)}


def objectives_of(goals: Sequence[Goal], metrics: dict[str, Any]) -> tuple[list[float], str]:
    """The values of the goals, and what keeps one from being one: it is absent, or not finite."""
    found = []
    for goal in goals:
        value = metrics.get(goal.metric)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            known = ", ".join(sorted(name for name, each in metrics.items() if isinstance(each, (int, float)))[:20])
            return [], f"it has no {goal.metric}; there are: {known or 'none'}"
        if not math.isfinite(value):
            return [], f"its {goal.metric} is {value}"
        found.append(float(value))
    return found, ""


def end_step(run_dir: Path) -> int:
    """The optimizer step at which a training ended."""
    checkpoints = RunFolder(run_dir).complete(run_dir / "checkpoints", TRAINER)
    if checkpoints:
        return int(read_checkpoint(checkpoints[-1])["step"])
    return int(RunFolder(run_dir).read_status().get("step", 0))


def check_steps(run_dir: Path, before: int, target: int) -> None:
    """Of a rung: it went on at the step that the rung before had reached, and took just the steps between. So the steps
    of all rungs add up to `target`. Raises STUDY_STEPS."""
    resumes = RunFolder(run_dir).read_run().get("resumes") or [{"step": 0}]
    first, last = int(resumes[0].get("step", -1)), end_step(run_dir)
    if before and first != before:
        raise STUDY_STEPS.error(run_dir, f"the rung before ended at step {before}; this run went on from step {first}")
    if last != target:
        raise STUDY_STEPS.error(run_dir, f"it was to end at step {target} and ended at step {last}")


def _measures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("step", "time")}


def _numbers(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict) and prefix.count(".") < 2:
            found |= _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = value
    return found
