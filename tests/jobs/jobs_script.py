"""Calls scripts/jobs.py in this process, which is quick, and holds it to what every script keeps to."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from programs import program

from vidqa.core import cli
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import Exit

SCRIPT = program(SKILL_ROOT / "scripts/jobs.py")


def ask(*words: str) -> dict[str, Any]:
    """The JSON of one call. Whatever kept it from its end is a problem with a code, and none is a bug."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(SCRIPT.parser, SCRIPT.main, [*words, "--json"])
    said: dict[str, Any] = json.loads(out.getvalue())
    assert code in list(Exit) and said["ok"] == (code == Exit.OK)
    assert code == Exit.OK or said["problems"], said
    for problem in said["problems"]:
        assert problem["code"] != "INTERNAL", problem
        assert all(problem[name] for name in ("code", "where", "message", "remedy")), problem
    assert "Traceback" not in err.getvalue()
    return said
