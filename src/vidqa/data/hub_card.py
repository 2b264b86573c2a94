"""Front matter of a README.md: the settings at the top of a model's or data set's card on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vidqa.core.files import open_plain

CARD = "README.md"
LICENSE_KEYS = ("license", "license_name", "license_link")
MAX_CARD_BYTES = 1 << 20  # bytes
FENCE = "---"


def front_matter(path: Path) -> dict[str, Any]:
    """The settings of a card; empty where there is no card, or no readable settings."""
    try:
        with open_plain(path) as file:
            text = file.read(MAX_CARD_BYTES).decode("utf-8-sig", "replace").replace("\r\n", "\n")
        before, fence, rest = text.partition(f"{FENCE}\n")
        settings = yaml.safe_load(rest.partition(f"\n{FENCE}")[0]) if fence and not before.strip() else None
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def front_matter_text(settings: Mapping[str, Any]) -> str:
    """Format settings as front matter, without a line break at the end."""
    return f"{FENCE}\n{yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)}{FENCE}"


def base_model(card: Mapping[str, Any]) -> str:
    """The first base model in the settings of a model card, organisation/name; empty if it is none, or a path."""
    first = [*base, ""][0] if isinstance(base := card.get("base_model"), list) else base
    return first if isinstance(first, str) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", first) else ""


def license_keys(card: Mapping[str, Any]) -> dict[str, str]:
    """The license in the settings of a model card; empty if they name none."""
    return {key: card[key] for key in LICENSE_KEYS if isinstance(card.get(key), str)} if card.get("license") else {}
