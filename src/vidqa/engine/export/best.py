"""The best export of a run, determined from the files on disk, so that neither a kill nor a resume loses it.

    <run>/best -> safetensors/epoch_3, and best.json: its metric, value and step

A measured export is always preferred to an unmeasured one. Every export stores its validation metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.cli import note
from vidqa.core.files import link_or_copy, read_object, remove, write_json, write_link
from vidqa.core.metric_names import ACCURACY, LOSS, REWARD
from vidqa.core.run_folder import EXPORT, RunFolder


@dataclass(frozen=True)
class Best:
    """best.json: the best export and its metric ("latest" if no export was measured)."""

    metric: str
    value: float | None
    step: int
    name: str
    avg_loss: float | None = None


def best_of(run: RunFolder, upto: int) -> Best | None:
    """The best of a run's exports: highest accuracy if all measured ones have it, then highest reward or lowest loss;
    of equal exports the earlier. If none was measured, the newest up to the step `upto`: later ones are of an attempt
    that was abandoned when this run resumed from an earlier step."""
    facts_by_export = {path: read_object(path / EXPORT) for path in run.complete(run.exports, EXPORT)}
    if best := _best_measured(run, facts_by_export):
        return best
    reached = [path for path, facts in facts_by_export.items() if facts["step"] <= upto]
    return Best("latest", None, facts_by_export[reached[-1]]["step"], reached[-1].name) if reached else None


def _best_measured(run: RunFolder, facts_by_export: dict[Path, dict[str, Any]]) -> Best | None:
    """The best measured export among exports and their facts."""
    measured = {path: values for path, facts in facts_by_export.items() if (values := _measured(run, path, facts))}
    common = set.intersection(*map(set, measured.values())) if measured else set()
    metric = next((name for name in (ACCURACY, REWARD, LOSS) if name in common), None)
    if metric is None:  # none was measured, or supervised and reinforcement exports share a folder
        return None
    best = max(measured, key=lambda path: (*_rank(metric, measured[path]), -facts_by_export[path]["step"]))
    values = measured[best]
    return Best(metric, values[metric], facts_by_export[best]["step"], best.name, values.get(LOSS))


def _rank(metric: str, values: dict[str, float]) -> tuple[float, float, float]:
    """The sort key of an export, higher is better: accuracy if it is `metric`, then reward, then low loss."""
    accuracy = values[ACCURACY] if metric == ACCURACY else 0.0
    return accuracy, values.get(REWARD, 0.0), -values.get(LOSS, 0.0)


def _measured(run: RunFolder, export: Path, facts: dict[str, Any]) -> dict[str, float]:
    """The validation values of an export. Exports of earlier versions do not store them; for the best one best.json
    does."""
    values = facts.get("measured")
    if values is None:
        best = read_object(run.path / "best.json")
        if best.get("name") == export.name and best.get("step") == facts["step"]:
            values = {LOSS: best.get("avg_loss"), best.get("metric"): best.get("value")}
    numbers = {key: value for key, value in (values or {}).items() if isinstance(value, (int, float))}
    return numbers if LOSS in numbers or REWARD in numbers else {}


def write_best(run: RunFolder, best: Best | None) -> None:
    """Write best.json and the link to the best export; without a best export remove both."""
    if best is None:
        remove(run.path / "best", owner=run.path)
        remove(run.path / "best.json", owner=run.path)
        return
    write_json(run.path / "best.json", vars(best))
    write_link(run.path / "best", f"{run.exports.name}/{best.name}")


def adopt_best(run: RunFolder, parent: Path, upto: int) -> None:
    """Copy the best export up to the step `upto` of the run whose checkpoint this run resumes from, under its name: as
    hard links if the disk allows."""
    theirs = RunFolder(parent)
    if parent.resolve() == run.path.resolve() or not theirs.exports.is_dir():
        return
    facts_by_export = {path: read_object(path / EXPORT) for path in theirs.complete(theirs.exports, EXPORT)}
    best = _best_measured(theirs, {path: facts for path, facts in facts_by_export.items() if facts["step"] <= upto})
    if best is None or (run.exports / best.name).exists():
        return
    folder = run.begin(run.exports, best.name)
    for path in (theirs.exports / best.name).iterdir():
        link_or_copy(path, folder / path.name)
    facts = read_object(folder / EXPORT)
    values = _measured(theirs, theirs.exports / best.name, facts)
    write_json(folder / EXPORT, {**facts, "measured": values, "adopted_from": str(parent)})
    run.publish(folder)
    note(f"the best so far is {best.name} of {parent}: {best.metric} {best.value:.4f}")
