"""Sizes of published models by their name on the hub, for an estimate while the model itself is not available.

published_models.json has the sizes of their published config.json. Once a model is here, its own files count.
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
    return _table().get(repository.lower())


@cache
def _table() -> dict[str, Published]:
    read = json.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name.lower(): Published(each["config"], each.get("processor", read["processor"]))
        for each in read["models"]
        for name in each["names"]
    }


def license_of(repository: str) -> dict[str, str]:
    """The license of a model of the table, as the keys of a model card; nothing for others."""
    return dict(_licenses().get(repository.lower(), {}))


@cache
def _licenses() -> dict[str, dict[str, str]]:
    read = json.loads(TABLE.read_text(encoding="utf-8"))
    by_owner = read["licenses"]
    names = [name for each in read["models"] for name in each["names"]]
    return {name.lower(): by_owner[owner] for name in names if (owner := name.partition("/")[0]) in by_owner}
