"""Platforms: where jobs run. What is known of a job beyond its place is in `vidqa.jobs`."""

import importlib

from vidqa.jobs.platforms._base import Platform
from vidqa.jobs.platforms.problems import PLATFORM_UNKNOWN

# The modules of this package that hold a platform, under its name in capitals.
MODULES = {
    "local": "local",
    "docker": "docker.platform",
    "slurm": "slurm.platform",
    "kubernetes": "kubernetes.platform",
}
NAMES = tuple(MODULES)


def platform(name: str) -> Platform:
    """The platform of this name. Raises PLATFORM_UNKNOWN."""
    if name not in NAMES:
        raise PLATFORM_UNKNOWN.error("--platform", f"there is no platform {name!r}; there are: {', '.join(NAMES)}")
    declared: Platform = getattr(importlib.import_module(f"vidqa.jobs.platforms.{MODULES[name]}"), name.upper())
    return declared
