"""Families: each passes the conformance suite, and the engine outside of them knows none."""

from __future__ import annotations

import re
from pathlib import Path

from family_conformance import *  # noqa: F403

import vidqa.engine

ENGINE = Path(vidqa.engine.__file__).parent
# A family's name, and the paths to parts of its model.
PRIVATE = re.compile(
    r"qwen|deepstack|\bmodel\.visual|\.visual\b|language_model|\bself_attn\b|\bvision_config\b|\btext_config\b", re.I
)


def test_the_engine_outside_of_families_knows_no_family() -> None:
    files = [path for path in ENGINE.rglob("*.py") if path.relative_to(ENGINE).parts[0] != "families"]
    found = [
        f"{path.relative_to(ENGINE)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert len(files) > 40 and found == []
