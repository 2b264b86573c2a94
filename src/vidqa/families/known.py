"""Models that are known by their name on the hub: sizes for an estimate where the model itself cannot be had.

known_models.json has the sizes that their published config.json gives; once a model is here, its own files count.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("known_models.json")


class Known(NamedTuple):
    """What config.json and processor_config.json of a model say of sizes."""

    config: dict[str, Any]
    processor: dict[str, Any]


def known(repository: str) -> Known | None:
    """What is known of a model of the hub by its "organisation/name", in whatever case; None of all others."""
    return _table().get(repository.lower())


@cache
def _table() -> dict[str, Known]:
    read = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name.lower(): Known(each["config"], read["processor"]) for each in read["models"] for name in each["names"]}
