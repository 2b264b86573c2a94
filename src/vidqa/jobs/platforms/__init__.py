"""Platforms: where jobs run. What is known of a job beyond its place is in `vidqa.jobs`."""

import importlib

from vidqa.core.cli import USAGE
from vidqa.jobs.platforms._base import Platform

# The modules of this package that hold a platform, under its name in capitals.
MODULES = {"local": "local", "docker": "docker", "slurm": "slurm", "kubernetes": "kubernetes.platform"}
NAMES = tuple(MODULES)


def platform(name: str) -> Platform:
    """The platform of this name. Raises USAGE."""
    if name not in NAMES:
        raise USAGE.error("--platform", f"there is no platform {name!r}", f"use one of: {', '.join(NAMES)}")
    declared: Platform = getattr(importlib.import_module(f"vidqa.jobs.platforms.{MODULES[name]}"), name.upper())
    return declared
