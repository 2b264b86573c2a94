"""The commands of a demo, as you would type them from the repository's folder: each is printed before it runs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.environment import child_environment, python_path


def build(action: str, out: Path, *words: object, overrides: Mapping[str, object]) -> None:
    """Write the spec `out`, whose runs go into the folder `runs` beside it."""
    script("build_spec", action, *words, "--results-dir", out.parent / "runs", *words_of(overrides), "--out", out)


def words_of(values: Mapping[str, object]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def launch(action: str, spec: Path) -> Path:
    """Run the job of `spec` to its end and return its run folder."""
    answer = script("launch", action, "--spec", spec, "--platform", "local", "--new-run", "--wait", "--json", read=True)
    return Path(json.loads(answer)["data"]["run_dir"])


def script(name: str, *words: object, read: bool = False) -> str:
    return python(Path("scripts") / f"{name}.py", *words, read=read)


def python(*words: object, read: bool = False) -> str:
    """Run one command in the repository's folder; a failure ends the demo with that command's exit code."""
    typed = [*map(str, words)]
    print(f"\n$ python {shlex.join(typed)}", flush=True)
    environment = child_environment(PYTHONPATH=python_path(), PYTHONSAFEPATH="1")
    done = subprocess.run(
        [sys.executable, *typed], cwd=SKILL_ROOT, env=environment, text=True, stdout=subprocess.PIPE if read else None
    )
    if done.returncode:
        print(done.stdout or "", end="")
        sys.exit(done.returncode)
    return done.stdout or ""
