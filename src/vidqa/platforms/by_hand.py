"""The files of a dry run in a folder of the user's choice, and the shell command that submits them from there.

    made = dry_run("train", Path("spec.toml"), "slurm")
    submit = write(made, platform("slurm"), Path("look"))       # mkdir -p RUN && cp look/... RUN && sbatch ...

A launch writes the same files into the run folder; they name it, so it is where they have to be when they run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.contract import files
from vidqa.platforms._base import Platform
from vidqa.platforms.problems import OUT_UNWRITABLE

if TYPE_CHECKING:
    from vidqa.jobs.launch import DryRun

SPEC, RUN = "spec.toml", "run.sh"


def files_of(made: DryRun) -> dict[str, str]:
    """Text by name: the spec that the job gets, and what is submitted, or else the command that runs."""
    return {SPEC: made.spec_toml, **(made.rendered.files or {RUN: f"#!/bin/bash\nexec {made.rendered.shown}\n"})}


def write(made: DryRun, where: Platform, folder: Path) -> str:
    """Write the files of a dry run into `folder`; the command that submits them, "" where no command can.

    Raises PLATFORM_OUT_UNWRITABLE.
    """
    write_files(files_of(made), folder)
    return where.by_hand(made.job, folder.absolute())


def write_files(texts: dict[str, str], folder: Path) -> None:
    """Raises PLATFORM_OUT_UNWRITABLE."""
    try:
        for name, text in texts.items():
            files.write_text(folder / name, text)
    except OSError as failed:
        raise OUT_UNWRITABLE.error(folder, f"it cannot be written: {failed}") from failed


def copied(names: Iterable[str], folder: Path, run_dir: Path) -> str:
    """The shell command that puts files of `folder` into the run folder."""
    run, sources = shlex.quote(str(run_dir)), shlex.join([str(folder / name) for name in names])
    return f"mkdir -p {run} && cp {sources} {run}"
