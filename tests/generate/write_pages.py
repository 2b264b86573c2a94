"""Writes the files made from the code: schemas, manifest, templates, tables of keys and codes, settings of a place,
import graph, and the parts of other files that the table of actions fills.

python -P tests/generate            write what differs
python -P tests/generate --check    write nothing; exit 1 and name the files that differ
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import import_graph
import reference_pages as pages
from action_tables import PARTS

import vidqa
from vidqa.core import actions
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.files import write_text
from vidqa.spec.keys import leaves, nested, schema

FILLED = {**PARTS, "references/migrating.md": pages.in_migrating}
MANIFEST = "schemas/manifest.json"


def _schema(action: str) -> str:
    """The schema of an action's spec, with the template's values as its default."""
    # An optional table is absent.
    values = {path: field.default for path, field in leaves(action).items() if not path.startswith("policy.lora.")}
    return json.dumps({**schema(action), "default": nested(values)}, indent=2, ensure_ascii=False) + "\n"


def _codes() -> str:
    """The table of codes, once every package has declared its own."""
    package = Path(vidqa.__file__).parent
    for file in sorted(package.rglob("*problems.py")):
        importlib.import_module(".".join(["vidqa", *file.relative_to(package).with_suffix("").parts]))
    for name in ("vidqa.core.cli", "vidqa.core._optional"):
        importlib.import_module(name)
    return pages.codes()


# What makes the pages of an action, and one line for each other page: where it goes, and what makes it.
OF_ACTIONS: dict[str, Callable[[str], str]] = {
    "schemas/{}.schema.json": _schema,
    "references/spec_template_{}.yaml": pages.template,
    "references/spec_template_{}.toml": pages.toml_template,
    "references/parameters_{}.md": pages.parameters,
}
PAGES: dict[str, Callable[[], str]] = {
    "schemas/deft_state.schema.json": lambda: json.dumps(pages.loop_schema(), indent=2, ensure_ascii=False) + "\n",
    "references/troubleshooting_codes.md": _codes,
    "references/packages.md": import_graph.page,
    "references/site_template.toml": pages.site_template,
}


@cache
def generated() -> dict[str, str]:
    """Every generated file by its path, the manifest last."""
    makers = ((path, name, make) for path, make in OF_ACTIONS.items() for name in actions.names())
    texts = {path.format(name): make(name) for path, name, make in makers}
    texts |= {path: make() for path, make in PAGES.items()}
    return {**texts, MANIFEST: _manifest(texts)}


def _manifest(texts: dict[str, str]) -> str:
    entries: dict[str, dict[str, Any]] = {}
    for name in actions.names():
        files = {"schema": f"schemas/{name}.schema.json", "template": f"references/spec_template_{name}.yaml"}
        entries[name] = {
            kind: {"path": path, "sha256": hashlib.sha256(texts[path].encode()).hexdigest()}
            for kind, path in files.items()
        } | pages.parameter_lists(name)
    return json.dumps({"schema": "vidqa.manifest.v1", "actions": entries}, indent=2) + "\n"


def differing(root: Path) -> dict[str, str]:
    """The files, generated as a whole or in part, whose text in `root` is another one, with the text that is due."""
    parts = {path: fill(text) for path, fill in FILLED.items() if (text := _text(root / path)) is not None}
    return {path: text for path, text in (generated() | parts).items() if _text(root / path) != text}


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the pages that are made from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the files that differ")
    parser.add_argument("--root", type=Path, default=SKILL_ROOT, help="folder that holds schemas/ and references/")
    options = parser.parse_args(words)
    different = differing(options.root)
    for path, text in different.items():
        print(f"{'differs' if options.check else 'wrote'}: {path}")
        if not options.check:
            write_text(options.root / path, text)
    return int(bool(different) and options.check)
