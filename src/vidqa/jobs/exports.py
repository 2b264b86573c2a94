"""Exports of runs: finding one, and the origin of its model, as far as it is known here.

source = find("outputs/train/RUN")                      its best export
source = find("outputs/train/RUN/safetensors/step_40")
source = find("latest", "step_40")                      of the newest run of the present folder that has exports
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vidqa.core.cli import USAGE
from vidqa.core.files import absolute, read_object, write_json
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import EXPORT, RunFolder
from vidqa.data.hub_card import CARD, base_model, front_matter, license_keys
from vidqa.data.storage.hub import is_hub_name, parse, snapshot_of
from vidqa.families import require_plain_weights
from vidqa.families.published import license_of
from vidqa.jobs import records
from vidqa.jobs.problems import EXPORT_UNPROVED, NO_EXPORT
from vidqa.planning.resume_compat import same_weights, weights_hash
from vidqa.spec import load_training
from vidqa.spec.models import TrainSpec
from vidqa.spec.run_lookup import ADAPTER, EXPORTS, find_export, run_folder_of


@dataclass(frozen=True)
class ExportSource:
    """An export of a run. `facts` is its export.json: step, the trainer's loss and the id of its sample."""

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
        """Hash of the weights, as in the recipe of an evaluation."""
        return weights_hash(self.export, self.base if self.is_adapter else None)

    def is_of(self, recorded: str) -> bool:
        """Whether a hash in a recipe is that of these weights."""
        return same_weights(recorded, self.export, self.base if self.is_adapter else None)


def find(named: str, which: str | None = None) -> ExportSource:
    """Find the export of a run folder (`which`: best, latest, step_N, epoch_N), an export's own folder, or "latest".

    Raises EXPORT_NOT_FOUND, EXPORT_UNPROVED, MODEL_QUANTIZED, USAGE, and the problems of `find_export` and of loading
    the run's spec.
    """
    folder = (_latest() if named == "latest" else absolute(named)).resolve()
    if not folder.is_dir():
        raise NO_EXPORT.error(named, "there is no such folder")
    if (folder / ADAPTER).is_file() or (folder / "config.json").is_file():
        if which:
            raise USAGE.error("--which", f"{folder} is already one export", "give its run, or leave --which out")
        export = folder
    else:
        export = find_export(folder, which or "best")
    home = export.parent.parent
    if export.parent.name != EXPORTS or not (home / "spec.toml").is_file() or not (home / "run.json").is_file():
        message = f"{export} is not inside its run folder, so its spec and data are unknown"
        raise NO_EXPORT.error(named, message, f"Name the run folder, or RUN/{EXPORTS}/NAME.")
    if (export / "config.json").is_file():
        require_plain_weights(export, "scripts/export.py hands on trained weights, not")
    facts = read_object(export / EXPORT)
    if reason := _unproved(facts):
        raise EXPORT_UNPROVED.error(export, reason)
    return ExportSource(RunFolder(home), export, load_training(home / "spec.toml"), facts)


def export_source(model: Path) -> ExportSource | None:
    """The run that exported a model folder; None if the folder is in no run, or in one whose spec cannot be read."""
    home = model.parent.parent
    if model.parent.name != EXPORTS or not (home / "run.json").is_file():
        return None
    with suppress(ProblemError):
        spec = load_training(home / "spec.toml")
        return ExportSource(RunFolder(home), model, spec, read_object(model / EXPORT))
    return None


def _latest() -> Path:
    """The run folder of the last job that was launched from the present folder and has exports."""
    here = Path.cwd()
    for record in records.scan()[0]:
        run = Path(record.run_dir)
        if record.is_of(here) and (run / EXPORTS).is_dir():
            return run_folder_of(run)
    raise NO_EXPORT.error("latest", f"no job launched from {here} has exports", "Name a run folder.")


def _unproved(facts: dict[str, Any]) -> str:
    """The reason why an export cannot be proved; empty if it can."""
    if not facts:
        return f"it has no {EXPORT} that can be read"
    if facts.get("unproved"):
        return str(facts["unproved"])
    loss = facts.get("trainer_loss")
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not isinstance(facts.get("proof_sample"), str):
        return f"{EXPORT} has no trainer loss, or not the sample of that loss"
    return ""


@dataclass(frozen=True)
class Origin:
    """The origin of a base model. `repository` is organisation/name on the hub, "" if only the folder `name` is known;
    `ancestor` is the model that it was trained from, by its card. `parent` names the run and the export that the base
    model is, "" if it is none. `license` has the keys of a model card."""

    name: str
    repository: str = ""
    revision: str = ""
    ancestor: str = ""
    parent: str = ""
    license: dict[str, str] = field(default_factory=dict)


def origin_of(source: ExportSource) -> Origin:
    """The origin of a run's base model, from run.json, the hub's cache, the base's own card and the run that made it.
    Exports have the license and the hub's name of their base in their card, and so hand them on."""
    base, card = source.base, front_matter(source.base / CARD)
    repository, revision = _on_hub(source)
    ancestor = base_model(card)
    license = license_keys(card) or license_of(repository or ancestor)
    return Origin(repository or base.name, repository, revision, ancestor, _parent(base), license)


def _parent(base: Path) -> str:
    """The run and the export that a model folder is, or that export.py made it of."""
    if run := export_source(base):
        return f"{run.run.path.name}, {run.export.name}"
    made_of = read_object(base / EXPORT).get("made_of")
    return f"{made_of.get('run')}, {made_of.get('export')}" if isinstance(made_of, dict) else ""


def _on_hub(source: ExportSource) -> tuple[str, str]:
    """Repository and commit on the hub, from the folder in the hub's cache, or from the name in the spec."""
    if repository := snapshot_of(source.base):
        return repository, source.base.name
    models = source.run.read_run().get("models")
    written = models.get("policy.model_name_or_path") if isinstance(models, dict) else None
    if isinstance(written, str) and is_hub_name(written):
        with suppress(ProblemError):
            name = parse(written)
            return name.repository, name.revision or ""
    return "", ""


def name_base(folder: Path, name: str = "", revision: str = "") -> None:
    """Replace the base path in an adapter, which exists on this machine only, by a name on the hub or by none."""
    if config := read_object(folder / ADAPTER):
        base = {"base_model_name_or_path": name or None, "revision": revision or None}
        write_json(folder / ADAPTER, {**config, **base})
