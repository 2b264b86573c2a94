"""Calls of the project's own programs like those of a user: in the repository's folder, each in a separate process."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def python(*words: object, codes: Collection[int] = (0,)) -> str:
    """Run a Python program and return its output. Exits with the end of it if the exit code is not in `codes`."""
    typed = [*map(str, words)]
    print(f"$ python {shlex.join(typed)}", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *typed], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode not in codes:
        sys.exit(f"{shlex.join(typed)} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def script(name: str, *words: object, codes: Collection[int] = (0,)) -> dict[str, Any]:
    """Run a script with --json and return its data. Exits if there are none, whatever the exit code."""
    answer = python(f"scripts/{name}.py", *words, "--json", codes=codes)
    return json.loads(answer).get("data") or sys.exit(f"scripts/{name}.py gave no data: {answer}")


def build(action: str, out: Path, values: Mapping[str, Any], *words: object) -> None:
    """Write the spec of an action to `out`, with `values` as --set."""
    script("build_spec", action, *words, *sets(values), "--out", out)


def sets(values: Mapping[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def demo(data: Path, seed: int, **sizes: int) -> None:
    """Write the demo's clips and questions of a seed; `sizes` are --clips, --pool, --each."""
    python(
        "workflow/demo/video_set.py",
        "--out",
        data,
        "--seed",
        seed,
        *(f"--{name}={size}" for name, size in sizes.items()),
    )


def tiny_model(model: Path, data: Path, seed: int, gain: float = 1.0) -> None:
    """Write a model of half a million random weights, with the vocabulary of the demo in `data`."""
    words = ("--corpus", data / "corpus.txt", "--seed", seed, "--gain", gain)
    python("-m", "vidqa.engine.families.tiny_qwen3_vl", "--out", model, *words)
