"""Puts the stand-in engine in the place of the real one, on every platform, and launches with it.

python tests/platforms/stand_in.py PLATFORM SPEC [--image IMAGE] [--site FILE]    a launcher that tests may kill
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vidqa.jobs.platforms import NAMES, engine_process
from vidqa.jobs.platforms._base import Job

ENGINE = Path(__file__).with_name("stand_in_engine.py")


def engine_words(job: Job) -> tuple[str, ...]:
    return (str(ENGINE), job.action, "--spec", str(job.spec), "--run-dir", str(job.run_dir))


def torchrun(python: str, job: Job, *_: object) -> tuple[str, ...]:
    """Without torchrun, which takes seconds to start: one process."""
    return (python, *engine_words(job))


def engine_environment(job: Job, cores: int | None = None) -> dict[str, str]:
    return {**REAL_ENVIRONMENT(job, cores), "RANK": "0"}


REAL_ENVIRONMENT = engine_process.engine_environment


def install(set_attribute: Callable[[Any, str, Any], None] = setattr, *, under_torchrun: bool = False) -> None:
    """`under_torchrun` keeps the real torchrun, which then starts the stand-in in every process."""
    names = {"engine_words": engine_words}
    if not under_torchrun:
        names |= {"torchrun": torchrun, "engine_environment": engine_environment}
    for name in NAMES:
        importlib.import_module(f"vidqa.jobs.platforms.{name}")
    for module in [module for name, module in sys.modules.items() if name.startswith("vidqa.jobs.platforms.")]:
        for name, stand_in in names.items():
            if hasattr(module, name):
                set_attribute(module, name, stand_in)


def main() -> None:
    import argparse

    from vidqa.jobs.launch import launch
    from vidqa.jobs.resources import Resources

    parser = argparse.ArgumentParser()
    parser.add_argument("platform")
    parser.add_argument("spec", type=Path)
    parser.add_argument("--image")
    parser.add_argument("--site", type=Path)
    options = parser.parse_args()
    install()
    done = launch("train", options.spec, options.platform, Resources(image=options.image, site=options.site))
    print(done.how, done.record.job_id, flush=True)


if __name__ == "__main__":
    main()
