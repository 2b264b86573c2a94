"""The tables of metrics have every name that the code writes or looks for; tests of the engine compare whole runs."""

from __future__ import annotations

import ast
import re

from logged_metrics import OF_ANSWERING, OF_GRPO

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.metric_names import training_metrics

NAME = re.compile(r"(train|val|perf|rollout)/[a-z_]*[a-z]")


def test_no_name_is_used_that_the_table_lacks() -> None:
    known = {*training_metrics("dpo"), *OF_GRPO, *OF_ANSWERING}
    used = {
        node.value
        for path in (SKILL_ROOT / "src/vidqa").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value)
    }
    assert len(used) > 30 and used - known == set()
