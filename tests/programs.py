"""Scripts and other programs that are no modules, loaded as one: script = program(SKILL_ROOT / "scripts/jobs.py")."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from unittest.mock import patch

from vidqa.core.cli import run


def program(path: Path) -> ModuleType:
    """The program, not run; where it looks for its imports is forgotten."""
    spec = spec_from_file_location(f"program_{path.stem}", path)
    assert spec and spec.loader
    module, before = module_from_spec(spec), list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def run_here(command: Sequence[str], *, cwd: Path) -> CompletedProcess[str]:
    """What `subprocess.run([python, SCRIPT, *words])` gives, without a process that imports everything anew."""
    script, out, err = program(Path(command[1])), StringIO(), StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", list(command[1:])):
        code = run(script.parser, script.main)
    return CompletedProcess(list(command), code, out.getvalue(), err.getvalue())


def run_next(line: str, *words: str, cwd: Path) -> CompletedProcess[str]:
    """What a shell gives for a command that a result names as the next one, with more words."""
    return run_here([*shlex.split(line), *words], cwd=cwd)
