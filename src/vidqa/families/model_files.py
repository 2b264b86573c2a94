"""The JSON files of a model folder, and the settings of its model card, README.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vidqa.core.files import open_plain, parse_json
from vidqa.families.problems import MODEL_FILE_MISSING

MAX_JSON_BYTES = 200_000_000  # bytes; the largest tokenizers have a tenth of it
MAX_CARD_BYTES = 1 << 20  # bytes
FENCE = "---"


def read_json(folder: Path, name: str) -> dict:
    """One JSON file of a model folder. Raises MODEL_FILE_MISSING."""
    path = folder / name
    try:
        value = parse_json(path, MAX_JSON_BYTES)
    except FileNotFoundError as missing:
        raise MODEL_FILE_MISSING.error(path, f"the model folder has no {name}") from missing
    except (ValueError, OSError) as broken:
        raise MODEL_FILE_MISSING.error(path, f"{name} cannot be read: {broken}") from broken
    if not isinstance(value, dict):
        raise MODEL_FILE_MISSING.error(path, f"{name} must hold a JSON object, not {type(value).__name__}")
    return value


def front_matter(path: Path) -> dict[str, Any]:
    """The settings at the top of a model card; none where there is no card, or no settings that can be read."""
    try:
        with open_plain(path) as file:
            text = file.read(MAX_CARD_BYTES).decode("utf-8", "replace")
        before, fence, rest = text.partition(f"{FENCE}\n")
        settings = yaml.safe_load(rest.partition(f"\n{FENCE}")[0]) if fence and not before.strip() else None
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def front_matter_text(settings: Mapping[str, Any]) -> str:
    """Settings as they stand at the top of a card, without a line break at their end."""
    return f"{FENCE}\n{yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)}{FENCE}"
