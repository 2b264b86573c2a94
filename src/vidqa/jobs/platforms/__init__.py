"""Platforms on which jobs run. All platform-independent parts of jobs are in `vidqa.jobs`."""

import importlib

from vidqa.core.cli import USAGE
from vidqa.jobs.platforms._base import Platform

# Modules of this package by platform; each defines the platform under its name in capitals.
MODULES = {"local": "local", "docker": "docker", "slurm": "slurm", "kubernetes": "kubernetes.platform"}
NAMES = tuple(MODULES)


def platform(name: str) -> Platform:
    """The platform of this name. Raises USAGE."""
    if name not in NAMES:
        raise USAGE.error("--platform", f"there is no platform {name!r}", f"use one of: {', '.join(NAMES)}")
    declared: Platform = getattr(importlib.import_module(f"vidqa.jobs.platforms.{MODULES[name]}"), name.upper())
    return declared
