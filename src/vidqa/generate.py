"""Writes the files made from the code: schemas, manifest, templates, tables of keys and codes, import graph.

python -m vidqa.generate            write what differs
python -m vidqa.generate --check    write nothing; exit 1 and name the files that differ
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from vidqa import import_graph
from vidqa.contract.cli import SKILL_ROOT
from vidqa.contract.files import write_text
from vidqa.planning.budget.page import memory_page
from vidqa.platforms import site
from vidqa.spec import pages
from vidqa.spec.models import SPECS
from vidqa.spec.shape import schema

MANIFEST = "schemas/manifest.json"


def _schema(action: str) -> str:
    return json.dumps(schema(action), indent=2, ensure_ascii=False) + "\n"


def _codes() -> str:
    """The table of codes, once every package has declared its own."""
    package = Path(__file__).parent
    for file in sorted(package.rglob("*problems.py")):
        importlib.import_module(".".join(["vidqa", *file.relative_to(package).with_suffix("").parts]))
    for name in ("vidqa.contract.cli", "vidqa.contract._optional"):
        importlib.import_module(name)
    return pages.codes()


# One line per page: where it goes, and what makes it.
PAGES: dict[str, Callable[[], str]] = {
    **{f"schemas/{action}.schema.json": partial(_schema, action) for action in SPECS},
    **{f"references/spec_template_{action}.yaml": partial(pages.template, action) for action in SPECS},
    **{f"references/parameters_{action}.md": partial(pages.parameters, action) for action in SPECS},
    "references/troubleshooting_codes.md": _codes,
    "references/memory.md": memory_page,
    "references/packages.md": import_graph.page,
    "references/site_template.toml": site.template,
}


def generated() -> dict[str, str]:
    """Every generated file by its path, the manifest last."""
    texts = {path: make() for path, make in PAGES.items()}
    return {**texts, MANIFEST: _manifest(texts)}


def _manifest(texts: dict[str, str]) -> str:
    actions = {}
    for action in SPECS:
        files = {"schema": f"schemas/{action}.schema.json", "template": f"references/spec_template_{action}.yaml"}
        actions[action] = {
            kind: {"path": path, "sha256": hashlib.sha256(texts[path].encode()).hexdigest()}
            for kind, path in files.items()
        }
    return json.dumps({"schema": "vidqa.manifest.v1", "actions": actions}, indent=2) + "\n"


def differing(root: Path) -> dict[str, str]:
    """The generated files whose text in `root` is another one, with the text they should have."""
    return {path: text for path, text in generated().items() if _text(root / path) != text}


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


if __name__ == "__main__":
    sys.exit(main())
