"""Version and commit of this program, and versions of the libraries that it computes with."""

from __future__ import annotations

import subprocess
from importlib import metadata

import vidqa
from vidqa.core.cli import SKILL_ROOT

LIBRARIES = ("torch", "torchvision", "transformers", "accelerate", "peft", "av", "numpy", "safetensors")


def versions() -> dict[str, str | None]:
    """Versions of this program and of the libraries that affect results; None for one that is not installed."""
    by_name: dict[str, str | None] = {"vidqa": vidqa.__version__}
    for name in LIBRARIES:
        try:
            by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            by_name[name] = None
    return by_name


def git_commit() -> str | None:
    """The commit of this skill if it is a git checkout."""
    return (output_of("git", "-C", str(SKILL_ROOT), "rev-parse", "HEAD") or "").strip() or None


def output_of(*words: str, limit_s: float = 20.0) -> str | None:
    """The output of a command; None if it does not exist or fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
