"""The files of a dry run in a folder of the user's choice, and the shell command that submits them from there.

    made = dry_run("train", Path("spec.toml"), "slurm")
    submit = write(made, platform("slurm"), Path("look"))       # mkdir -p RUN && cp look/... RUN && sbatch ...

A launch writes the same files into the run folder; they name it, so it is where they have to be when they run.
"""

from __future__ import annotations

from pathlib import Path

from vidqa.contract import files
from vidqa.jobs.launch import DryRun
from vidqa.jobs.problems import OUT_UNWRITABLE
from vidqa.platforms._base import RUN_SCRIPT, SPEC_FILE, Platform


def files_of(made: DryRun) -> dict[str, str]:
    """Text by name: the spec that the job gets, and what is submitted, or else the command that runs."""
    command = {RUN_SCRIPT: f"#!/bin/bash\nexec {made.rendered.shown}\n"}
    return {SPEC_FILE: made.spec_toml, **(made.rendered.files or command)}


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
