"""Serialize a spec: TOML, YAML or JSON, a listing of the origin of each value, and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import tomli_w
import yaml

from vidqa.core.actions import action_for
from vidqa.core.cli import SKILL_ROOT, refused_writes
from vidqa.core.files import write_text
from vidqa.core.problem import raise_errors
from vidqa.spec.cosmos import target_table
from vidqa.spec.keys import flat
from vidqa.spec.models import Spec
from vidqa.spec.resolve import Resolved


def dump(spec: Spec, format: str = "toml", target: str = "native", train_samples: int | None = None) -> str:
    """Format the whole spec without unset keys. `target` "cosmos-rl" writes only keys of cosmos-rl.

    With `train_samples` epochs can be converted to steps where cosmos-rl knows only steps. Raises the errors of
    conversion to the target.
    """
    if target == "cosmos-rl":
        table, problems = target_table(spec, train_samples)
        raise_errors(problems)
    else:
        table = spec.model_dump(exclude_none=True)
    return render(table, format)


def render(table: dict[str, Any], format: str) -> str:
    if format == "toml":
        return tomli_w.dumps(table)
    if format == "yaml":
        return yaml.safe_dump(table, sort_keys=False, allow_unicode=True)
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"


def explain(resolved: Resolved) -> str:
    """List the layers in order, then one line per key: path, value, and the layer of the value."""
    rows = [
        (path, json.dumps(value, ensure_ascii=False, default=str), resolved.origins[path])
        for path, value in flat(resolved.spec).items()
    ]
    wide = max(len(path) for path, _, _ in rows)
    layers = "layers, the later one wins: " + ", ".join(resolved.layers)
    return "\n".join([layers, *(f"{path:<{wide}}  {value:<28}  {origin}" for path, value, origin in rows)])


def fingerprint(spec: Spec) -> str:
    """sha256 of the spec's canonical JSON, without keys that do not change what a run computes. The order of patterns
    with values counts: the first match decides."""
    left_out = action_for(spec).ignored_keys
    values = {path: value for path, value in flat(spec).items() if path not in left_out}
    patterns = [path for path, value in values.items() if "_pattern" in path and isinstance(value, dict)]
    values |= {path: list(values[path].items()) for path in patterns}
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_spec(out: Path, text: str, schema_of: str = "") -> None:
    """Write a spec. If `schema_of` names an action, TOML begins with the line by which editors find its schema. Raises
    ENV_FILE_REFUSED."""
    if schema_of and out.suffix == ".toml":
        schema = os.path.relpath(SKILL_ROOT / "schemas" / f"{schema_of}.schema.json", out.absolute().parent)
        text = f"#:schema {schema}\n\n{text}"
    with refused_writes(out):
        write_text(out, text)
