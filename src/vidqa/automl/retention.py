"""Which checkpoints and exports of a study can still be used; the others are removed after they were named."""

from __future__ import annotations

from pathlib import Path

from vidqa.contract.files import remove, require_owned
from vidqa.contract.run_folder import UNFINISHED
from vidqa.automl.history import Entry, History, ranked
from vidqa.automl.study import Study


def removable(study: Study, history: History) -> list[Path]:
    """Folders of checkpoints and exports that nobody goes on from: checkpoints of trials that are neither running nor
    paused, nor may be another's parent; exports of trials that are neither the template nor among the best."""
    if study.settings.keep == "all":
        return []
    kept = {entry.number for entry in ranked(history, study.goal)[: study.settings.finals.top]}
    has_children = study.settings.algorithm == "pbt" and not history.searched
    found: list[Path] = []
    for entry in history.trials:
        if has_children or (entry.state in ("running", "paused") and not history.searched):
            continue
        for run in _runs(history, entry):
            found.append(run / "checkpoints")
            if entry.number not in kept and entry is not history.template:
                found.append(run / "safetensors")
    reruns = [Path(score["train_run"]) for score in history.scores.values() if score.get("train_run")]
    found += [run / "checkpoints" for run in reruns]
    return [path for path in found if str(path) not in history.removed and path.is_dir()]


def is_stranded(history: History, entry: Entry) -> bool:
    """Whether a paused trial cannot go on, as its checkpoints were removed when the search had ended."""
    return entry.state == "paused" and str(_runs(history, entry)[-1] / "checkpoints") in history.removed


def remove_whole(path: Path, study: Study) -> None:
    """Never half a folder under its own name. Raises REMOVAL_OUTSIDE."""
    require_owned(path, study.folder)
    doomed = path.with_name(f"{UNFINISHED}{path.name}")
    path.rename(doomed)
    remove(doomed, owner=study.folder)


def bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _runs(history: History, entry: Entry) -> list[Path]:
    """The runs of a trial's trainings that are over, by rung."""
    names = [f"trial-{entry.number}/rung-{rung}/train" for rung in range(entry.rung + 1)]
    ended = [work.ended for name in names if (work := history.work.get(name)) and work.ended]
    return [Path(each["run_dir"]) for each in ended if each["run_dir"]]
