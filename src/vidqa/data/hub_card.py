"""The settings at the top of a README.md, the card that a model or a data set has on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vidqa.core.files import open_plain

MAX_CARD_BYTES = 1 << 20  # bytes
FENCE = "---"


def front_matter(path: Path) -> dict[str, Any]:
    """The settings of a card; none where there is no card, or no settings that can be read."""
    try:
        with open_plain(path) as file:
            text = file.read(MAX_CARD_BYTES).decode("utf-8-sig", "replace").replace("\r\n", "\n")
        before, fence, rest = text.partition(f"{FENCE}\n")
        settings = yaml.safe_load(rest.partition(f"\n{FENCE}")[0]) if fence and not before.strip() else None
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def front_matter_text(settings: Mapping[str, Any]) -> str:
    """Settings as they stand at the top of a card, without a line break at their end."""
    return f"{FENCE}\n{yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)}{FENCE}"
