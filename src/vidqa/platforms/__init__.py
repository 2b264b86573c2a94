"""Platforms run jobs; records say what became of them."""

import importlib

from vidqa.platforms._base import Platform
from vidqa.platforms.problems import PLATFORM_UNKNOWN

# Each is a module of this room that holds its platform under its name in capitals.
NAMES = ("local", "docker", "slurm", "kubernetes")


def platform(name: str) -> Platform:
    """The platform of this name. Raises PLATFORM_UNKNOWN."""
    if name not in NAMES:
        raise PLATFORM_UNKNOWN.error("--platform", f"there is no platform {name!r}; there are: {', '.join(NAMES)}")
    found: Platform = getattr(importlib.import_module(f"vidqa.platforms.{name}"), name.upper())
    return found
