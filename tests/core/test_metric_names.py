"""The table of metrics has every name that the code writes or looks for; tests of the engine compare whole runs."""

from __future__ import annotations

import ast
import re

from vidqa.core import metric_names
from vidqa.core.cli import SKILL_ROOT

NAME = re.compile(r"(train|val|perf|rollout)/[a-z_]*[a-z]")


def test_no_name_is_used_that_the_table_lacks() -> None:
    known = {*metric_names.of_training("dpo"), *metric_names.OF_GRPO, *metric_names.OF_ANSWERING}
    used = {
        node.value
        for path in (SKILL_ROOT / "src/vidqa").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value)
    }
    assert len(used) > 30 and used - known == set()
