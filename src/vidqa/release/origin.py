"""Where a model comes from: the hub's name of its base model and the license, as far as they are known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vidqa.contract.files import open_plain, read_object, write_json
from vidqa.contract.problem import ProblemError
from vidqa.families.published import license_of
from vidqa.release.source import ExportSource
from vidqa.spec.parents import ADAPTER
from vidqa.storage.hub import is_hub_name, is_snapshot, parse

LICENSE_KEYS = ("license", "license_name", "license_link")
MOST_BYTES = 1 << 20  # of a model card
FENCE = "---"


@dataclass(frozen=True)
class Origin:
    """`repository` is organisation/name on the hub, "" where the base model is only known as a folder `name`;
    `ancestor` is what that folder's own card calls its base. `license` has the keys of a model card."""

    name: str
    repository: str = ""
    revision: str = ""
    ancestor: str = ""
    license: dict[str, str] = field(default_factory=dict)


def origin_of(source: ExportSource) -> Origin:
    """What is known of the base model of a run: from run.json, the hub's cache, and the base's own model card."""
    base, card = source.base, front_matter(source.base / "README.md")
    repository, revision = _on_hub(source)
    license = _license(card) or license_of(repository)
    return Origin(repository or base.name, repository, revision, _named(card.get("base_model")), license)


def front_matter(path: Path) -> dict[str, Any]:
    """The settings at the top of a model card; none where there is no card, or no settings that can be read."""
    try:
        with open_plain(path) as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
        before, fence, rest = text.partition(f"{FENCE}\n")
        found = yaml.safe_load(rest.partition(f"\n{FENCE}")[0]) if fence and not before.strip() else None
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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
