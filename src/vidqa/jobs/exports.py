"""Exports of runs: finding one, and the origin of its model, as far as it is known here.

source = find("outputs/train/RUN")                      its best export
source = find("outputs/train/RUN/safetensors/step_40")
source = find("latest", "step_40")                      of the newest run of the present folder that has exports
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from vidqa.core.cli import USAGE
from vidqa.core.files import absolute, read_object, write_json
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import EXPORT, RunFolder
from vidqa.data.hub_card import front_matter
from vidqa.data.storage.hub import is_hub_name, is_snapshot, parse
from vidqa.families import require_plain_weights
from vidqa.families.published import license_of
from vidqa.jobs import records
from vidqa.jobs.problems import EXPORT_UNPROVED, NO_EXPORT
from vidqa.planning.resume_compat import same_weights, weights_hash
from vidqa.spec import load_training
from vidqa.spec.models import TrainSpec
from vidqa.spec.run_lookup import ADAPTER, EXPORTS, find_export, run_folder_of

LICENSE_KEYS = ("license", "license_name", "license_link")
MOST_PARENTS = 20  # longest chain of runs that each started from an export of the previous one


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
        require_plain_weights(export, "export.py hands on trained weights, not")
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
    `ancestor` is the model that it was trained from, by its run or its own card. `parent` names the run and the export
    that the base model is, "" if it is none. `license` has the keys of a model card."""

    name: str
    repository: str = ""
    revision: str = ""
    ancestor: str = ""
    parent: str = ""
    license: dict[str, str] = field(default_factory=dict)


def origin_of(source: ExportSource) -> Origin:
    """The origin of a run's base model, from run.json, the hub's cache, the base's own model card, and the runs that
    exported it and its own bases."""
    base, card = source.base, front_matter(source.base / "README.md")
    repository, revision = _on_hub(source)
    before = list(islice(_before(source), MOST_PARENTS))
    ancestor = _named(card.get("base_model")) or next((name for run in before if (name := _on_hub(run)[0])), "")
    license = _license(card) or license_of(repository or ancestor)
    return Origin(repository or base.name, repository, revision, ancestor, _parent(base, before), license)


def _before(source: ExportSource) -> Iterator[ExportSource]:
    """The run that exported a run's base model, the run that exported that one's, and so on."""
    while run := export_source(source.base):
        source = run
        yield run


def _parent(base: Path, before: Sequence[ExportSource]) -> str:
    """The run and the export that a model folder is, or that export.py made it of."""
    if before:
        return f"{before[0].run.path.name}, {before[0].export.name}"
    made_of = read_object(base / EXPORT).get("made_of")
    return f"{made_of.get('run')}, {made_of.get('export')}" if isinstance(made_of, dict) else ""


def _on_hub(source: ExportSource) -> tuple[str, str]:
    """Repository and commit on the hub, from the name in the spec, or from the folder in the hub's cache."""
    folder, models = source.base, source.run.read_run().get("models")
    written = models.get("policy.model_name_or_path") if isinstance(models, dict) else None
    commit = folder.name if is_snapshot(folder) else ""
    if isinstance(written, str) and is_hub_name(written):
        try:
            name = parse(written)
        except ProblemError:
            return "", ""
        return name.repository, commit or name.revision or ""
    if is_snapshot(folder):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/", 1), commit
    return "", ""


def _license(card: Mapping[str, Any]) -> dict[str, str]:
    return {key: card[key] for key in LICENSE_KEYS if isinstance(card.get(key), str)} if card.get("license") else {}


def _named(base: object) -> str:
    first = base[0] if isinstance(base, list) and base else base
    return first if isinstance(first, str) else ""


def point_to_hub(folder: Path, origin: Origin) -> None:
    """Replace the base path of an adapter by its name on the hub: the folder exists on this machine only."""
    config = read_object(folder / ADAPTER)
    if not origin.repository or not config:
        return
    named = {"base_model_name_or_path": origin.repository, "revision": origin.revision or None}
    if any(config.get(key) != value for key, value in named.items()):
        write_json(folder / ADAPTER, {**config, **named})
