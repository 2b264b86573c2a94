"""The JSON files of a model folder."""

from __future__ import annotations

from pathlib import Path

from vidqa.contract.files import parse_json
from vidqa.families.problems import MODEL_FILE_MISSING

LARGEST_JSON = 200_000_000  # bytes; the largest tokenizers have a tenth of it


def read_json(folder: Path, name: str) -> dict:
    """One JSON file of a model folder. Raises MODEL_FILE_MISSING."""
    path = folder / name
    try:
        value = parse_json(path, LARGEST_JSON)
    except FileNotFoundError as missing:
        raise MODEL_FILE_MISSING.error(path, f"the model folder has no {name}") from missing
    except (ValueError, OSError) as broken:
        raise MODEL_FILE_MISSING.error(path, f"{name} cannot be read: {broken}") from broken
    if not isinstance(value, dict):
        raise MODEL_FILE_MISSING.error(path, f"{name} must hold a JSON object, not {type(value).__name__}")
    return value
