"""Where a model comes from: the model that its run started from, the run that made that one, the hub's name and the
license, as far as they are known here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from vidqa.core.files import read_object, write_json
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import EXPORT
from vidqa.data.storage.hub import is_hub_name, is_snapshot, parse
from vidqa.families.model_files import front_matter
from vidqa.families.published import license_of
from vidqa.jobs.release.source import ExportSource, made_by
from vidqa.spec.run_lookup import ADAPTER

LICENSE_KEYS = ("license", "license_name", "license_link")
MOST_PARENTS = 20  # runs, each begun from an export of the one before


@dataclass(frozen=True)
class Origin:
    """`repository` is organisation/name on the hub, "" where the base model is only known as a folder `name`;
    `ancestor` is what that one was trained from, as its run or its own card says. `parent` names the run and the export
    that the base model is, "" where it is none. `license` has the keys of a model card."""

    name: str
    repository: str = ""
    revision: str = ""
    ancestor: str = ""
    parent: str = ""
    license: dict[str, str] = field(default_factory=dict)


def origin_of(source: ExportSource) -> Origin:
    """What is known of the base model of a run: from run.json, the hub's cache, the base's own model card, and the runs
    whose exports it and its own bases are."""
    base, card = source.base, front_matter(source.base / "README.md")
    repository, revision = _on_hub(source)
    before = list(islice(_before(source), MOST_PARENTS))
    ancestor = _named(card.get("base_model")) or next((name for run in before if (name := _on_hub(run)[0])), "")
    license = _license(card) or license_of(repository or ancestor)
    return Origin(repository or base.name, repository, revision, ancestor, _parent(base, before), license)


def _before(source: ExportSource) -> Iterator[ExportSource]:
    """The run whose export a run started from, the run whose export that one did, and so on."""
    while run := made_by(source.base):
        source = run
        yield run


def _parent(base: Path, before: Sequence[ExportSource]) -> str:
    """The run and the export that a model folder is, or was made of by export.py."""
    if before:
        return f"{before[0].run.path.name}, {before[0].export.name}"
    made_of = read_object(base / EXPORT).get("made_of")
    return f"{made_of.get('run')}, {made_of.get('export')}" if isinstance(made_of, dict) else ""


def _on_hub(source: ExportSource) -> tuple[str, str]:
    """Repository and commit: as the spec named it, or by the folder of the hub's cache."""
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
    """Let an adapter name its base as the hub does: the folder that it was trained on is on this machine alone."""
    config = read_object(folder / ADAPTER)
    if not origin.repository or not config:
        return
    named = {"base_model_name_or_path": origin.repository, "revision": origin.revision or None}
    if any(config.get(key) != value for key, value in named.items()):
        write_json(folder / ADAPTER, {**config, **named})
