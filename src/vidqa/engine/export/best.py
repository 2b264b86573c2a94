"""Which export of a run is the best. It is found from the files on disk, so that neither a kill nor a resume loses it.

    <run>/best -> safetensors/epoch_3, and best.json: by which metric, with which value, after which step

An export that was measured is never second to one that was not. Every export keeps what was measured of it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.cli import note
from vidqa.core.files import read_object, remove, write_json, write_link
from vidqa.core.metric_names import ACCURACY, LOSS, REWARD
from vidqa.core.run_folder import EXPORT, RunFolder


@dataclass(frozen=True)
class Best:
    """best.json: which export is best, by which metric ("latest" where nothing was measured)."""

    metric: str
    value: float | None
    step: int
    name: str
    avg_loss: float | None = None


def best_of(run: RunFolder, upto: int) -> Best | None:
    """The best of a run's exports: the most accurate where all measured ones have answered, then the one with the
    largest reward or the least loss, of equals the earlier one. Where none was measured, the newest up to the step
    `upto`: later ones are of an attempt that this run went back behind."""
    facts_by_export = {path: read_object(path / EXPORT) for path in run.complete(run.exports, EXPORT)}
    if best := _best_measured(run, facts_by_export):
        return best
    reached = [path for path, facts in facts_by_export.items() if facts["step"] <= upto]
    return Best("latest", None, facts_by_export[reached[-1]]["step"], reached[-1].name) if reached else None


def _best_measured(run: RunFolder, facts_by_export: dict[Path, dict[str, Any]]) -> Best | None:
    """Of exports and their facts, the best that was measured."""
    measured = {path: values for path, facts in facts_by_export.items() if (values := _measured(run, path, facts))}
    common = set.intersection(*map(set, measured.values())) if measured else set()
    metric = next((name for name in (ACCURACY, REWARD, LOSS) if name in common), None)
    if metric is None:  # none was, or exports of supervised training and of reinforcement are in one folder
        return None
    best = max(measured, key=lambda path: (*_rank(metric, measured[path]), -facts_by_export[path]["step"]))
    values = measured[best]
    return Best(metric, values[metric], facts_by_export[best]["step"], best.name, values.get(LOSS))


def _rank(metric: str, values: dict[str, float]) -> tuple[float, float, float]:
    """More is better: accuracy where it is `metric`, then reward, then a small loss."""
    accuracy = values[ACCURACY] if metric == ACCURACY else 0.0
    return accuracy, values.get(REWARD, 0.0), -values.get(LOSS, 0.0)


def _measured(run: RunFolder, export: Path, facts: dict[str, Any]) -> dict[str, float]:
    """The validation values of an export. One of an earlier version does not hold them; if it was the best, best.json
    does."""
    values = facts.get("measured")
    if values is None:
        best = read_object(run.path / "best.json")
        if best.get("name") == export.name and best.get("step") == facts["step"]:
            values = {LOSS: best.get("avg_loss"), best.get("metric"): best.get("value")}
    numbers = {key: value for key, value in (values or {}).items() if isinstance(value, (int, float))}
    return numbers if LOSS in numbers or REWARD in numbers else {}


def write_best(run: RunFolder, best: Best | None) -> None:
    """Record `best` and let the link lead to it; where there is none, neither stays."""
    if best is None:
        remove(run.path / "best", owner=run.path)
        remove(run.path / "best.json", owner=run.path)
        return
    write_json(run.path / "best.json", vars(best))
    write_link(run.path / "best", f"{run.exports.name}/{best.name}")


def adopt_best(run: RunFolder, parent: Path, upto: int) -> None:
    """Give a run that goes on from another one's checkpoint that run's best export up to then, under its name: a link
    to the same files where the disk allows it."""
    theirs = RunFolder(parent)
    if parent.resolve() == run.path.resolve() or not theirs.exports.is_dir():
        return
    facts_by_export = {path: read_object(path / EXPORT) for path in theirs.complete(theirs.exports, EXPORT)}
    best = _best_measured(theirs, {path: facts for path, facts in facts_by_export.items() if facts["step"] <= upto})
    if best is None or (run.exports / best.name).exists():
        return
    folder = run.begin(run.exports, best.name)
    for path in (theirs.exports / best.name).iterdir():
        try:
            os.link(path, folder / path.name)
        except OSError:
            shutil.copyfile(path, folder / path.name)
    facts = read_object(folder / EXPORT)
    values = _measured(theirs, theirs.exports / best.name, facts)
    write_json(folder / EXPORT, {**facts, "measured": values, "adopted_from": str(parent)})
    run.publish(folder)
    note(f"the best so far is {best.name} of {parent}: {best.metric} {best.value:.4f}")
