"""Which export of which run is meant.

found = find("outputs/train/RUN")                      its best export
found = find("outputs/train/RUN/safetensors/step_40")
found = find("latest", "step_40")                      of the newest run of the present folder that has exports
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vidqa.core.cli import USAGE
from vidqa.core.files import read_object
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import EXPORT, RunFolder
from vidqa.families import require_plain_weights
from vidqa.jobs import records
from vidqa.jobs.problems import EXPORT_UNPROVED, NO_EXPORT
from vidqa.planning.resume_compat import same_weights, weights_hash
from vidqa.spec import load_training
from vidqa.spec.models import TrainSpec
from vidqa.spec.run_lookup import ADAPTER, EXPORTS, find_export, run_folder_of


@dataclass(frozen=True)
class ExportSource:
    """An export of a run. `facts` is its export.json: step, the trainer's loss and the sample that it is of."""

    run: RunFolder
    export: Path
    spec: TrainSpec
    facts: dict[str, Any]

    @property
    def is_adapter(self) -> bool:
        return (self.export / ADAPTER).is_file()

    @property
    def base(self) -> Path:
        return Path(self.spec.policy.model_name_or_path)

    @cached_property
    def sha256(self) -> str:
        """Names the weights, as the recipe of an evaluation does."""
        return weights_hash(self.export, self.base if self.is_adapter else None)

    def is_of(self, recorded: str) -> bool:
        """Whether a recipe names these weights."""
        return same_weights(recorded, self.export, self.base if self.is_adapter else None)


def find(named: str, which: str | None = None) -> ExportSource:
    """The export of a run folder (`which`: best, latest, step_N, epoch_N), an export's own folder, or "latest".

    Raises EXPORT_NOT_FOUND, EXPORT_UNPROVED, MODEL_QUANTIZED, USAGE, and what `find_export` and loading the run's spec
    raise.
    """
    folder = (_latest() if named == "latest" else Path(named).expanduser()).resolve()
    if not folder.is_dir():
        raise NO_EXPORT.error(named, "there is no such folder")
    if (folder / ADAPTER).is_file() or (folder / "config.json").is_file():
        if which:
            raise USAGE.error("--which", f"{folder} is one export already", "name its run, or leave --which out")
        export = folder
    else:
        export = find_export(folder, which or "best")
    home = export.parent.parent
    if export.parent.name != EXPORTS or not (home / "spec.toml").is_file() or not (home / "run.json").is_file():
        message = f"{export} does not lie in the run that made it, so its spec and its data are not known"
        raise NO_EXPORT.error(named, message, f"Name the run folder, or RUN/{EXPORTS}/NAME.")
    if (export / "config.json").is_file():
        require_plain_weights(export, "export.py hands on trained weights, not")
    facts = read_object(export / EXPORT)
    if reason := _unproved(facts):
        raise EXPORT_UNPROVED.error(export, reason)
    return ExportSource(RunFolder(home), export, load_training(home / "spec.toml"), facts)


def made_by(model: Path) -> ExportSource | None:
    """The run that exported a model folder; None where it lies in none, or in one whose spec cannot be read."""
    home = model.parent.parent
    if model.parent.name != EXPORTS or not (home / "run.json").is_file():
        return None
    with suppress(ProblemError):
        spec = load_training(home / "spec.toml")
        return ExportSource(RunFolder(home), model, spec, read_object(model / EXPORT))
    return None


def _latest() -> Path:
    """The run folder of the job that was launched last from the present folder and has exports."""
    here = Path.cwd()
    for record in records.scan()[0]:
        run = Path(record.run_dir)
        if record.is_of(here) and (run / EXPORTS).is_dir():
            return run_folder_of(run)
    raise NO_EXPORT.error("latest", f"no job launched from {here} has exports", "Name a run folder.")


def _unproved(facts: dict[str, Any]) -> str:
    """Why an export cannot be proved; empty where it can."""
    if not facts:
        return f"it has no {EXPORT} that can be read"
    if facts.get("unproved"):
        return str(facts["unproved"])
    loss = facts.get("trainer_loss")
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not isinstance(facts.get("proof_sample"), str):
        return f"{EXPORT} names no loss of the trainer, or not the sample that it is of"
    return ""
