"""Read the JSON files of a model folder, and tables in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from vidqa.core.files import parse_json
from vidqa.families.problems import MODEL_BROKEN, MODEL_UNSUPPORTED

MAX_JSON_BYTES = 200_000_000  # bytes; the largest tokenizers have a tenth of it


def read_json(folder: Path, name: str) -> dict:
    """Read one JSON file of a model folder. Raises MODEL_BROKEN."""
    path = folder / name
    try:
        value = parse_json(path, MAX_JSON_BYTES)
    except FileNotFoundError as missing:
        raise MODEL_BROKEN.error(path, f"the model folder has no {name}") from missing
    except (ValueError, OSError) as broken:
        raise MODEL_BROKEN.error(path, f"{name} cannot be read: {broken}") from broken
    if not isinstance(value, dict):
        raise MODEL_BROKEN.error(path, f"{name} must contain a JSON object, not {type(value).__name__}")
    return value


class ConfigTable(BaseModel):
    """A table of config.json. Defaults are those of transformers' classes; null is not the same as an absent key."""

    model_config = ConfigDict(strict=True, extra="ignore", loc_by_alias=False)


def _is_float(value: object) -> object:
    """Refuse an int, as transformers does here; pydantic's strict mode accepts it."""
    if type(value) is not float:
        raise ValueError("Input should be a float")
    return value


Float = Annotated[float, BeforeValidator(_is_float)]
Part = TypeVar("Part", bound=ConfigTable)


def parse(config: dict[str, Any], name: str, where: Path, table: type[Part]) -> Part:
    """Parse the table `name` of a config.json ("config": the whole). Raises MODEL_UNSUPPORTED."""
    values = config if name == "config" else config.get(name)
    if not isinstance(values, dict):
        raise MODEL_UNSUPPORTED.error(where, f"{name} must be a table of sizes, not {values!r:.60}")
    try:
        return table.model_validate(values)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        key = ".".join(map(str, (name, *error["loc"])))
        rule = error["msg"].removeprefix("Value error, ").replace("Input should", "must")
        value = "" if error["type"] == "missing" else f", not {error['input']!r:.60}"
        raise MODEL_UNSUPPORTED.error(where, f"{key}: {rule}{value}") from invalid
