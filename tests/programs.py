"""Scripts and other programs outside of packages, loaded as modules: program(SKILL_ROOT / "scripts/jobs.py")."""

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
    """Load a program without running it, and restore sys.path."""
    spec = spec_from_file_location(f"program_{path.stem}", path)
    assert spec and spec.loader
    module, before = module_from_spec(spec), list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def run_here(command: Sequence[str], *, cwd: Path) -> CompletedProcess[str]:
    """Run a script in this process, with the result of `subprocess.run([python, SCRIPT, *words])`."""
    script, out, err = program(Path(command[1])), StringIO(), StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", list(command[1:])):
        code = run(script.parser, script.main)
    return CompletedProcess(list(command), code, out.getvalue(), err.getvalue())


def run_next(line: str, *words: str, cwd: Path) -> CompletedProcess[str]:
    """Run the next command that a result names, as a shell does, with more arguments."""
    return run_here([*shlex.split(line), *words], cwd=cwd)
