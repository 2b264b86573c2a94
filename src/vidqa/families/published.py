"""Published models by their name on the hub: sizes, for an estimate before a download, and licenses.

published_models.json holds the sizes of their published config.json. Once a model is downloaded, its own files count.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("published_models.json")


class Published(NamedTuple):
    """The sizes in a model's config.json and processor_config.json."""

    config: dict[str, Any]
    processor: dict[str, Any]


def published(repository: str) -> Published | None:
    """The settings of a model of the hub by "organisation/name", in any case; None for models not in the table."""
    return _models().get(repository.lower())


def license_of(repository: str) -> dict[str, str]:
    """The license of a model of the table, as the keys of a model card; nothing for others."""
    licenses = {owner.lower(): license for owner, license in _content()["licenses"].items()}
    owner = repository.lower().partition("/")[0]
    return dict(licenses.get(owner, {})) if published(repository) else {}


@cache
def _content() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


@cache
def _models() -> dict[str, Published]:
    content = _content()
    return {
        name.lower(): Published(model["config"], model.get("processor", content["processor"]))
        for model in content["models"]
        for name in model["names"]
    }
