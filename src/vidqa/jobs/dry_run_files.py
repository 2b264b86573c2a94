"""The files of a dry run in a folder of the user's choice, and the shell command that submits them from there.

    made = dry_run("train", Path("spec.toml"), "slurm")
    submit = write(made, platform("slurm"), Path("look"))       # mkdir -p RUN && cp look/... RUN && sbatch ...

A launch writes the same files into the run folder. They name that folder, so they must lie there when they run.
"""

from __future__ import annotations

from pathlib import Path

from vidqa.contract import files
from vidqa.jobs.launch import DryRun
from vidqa.jobs.problems import OUT_UNWRITABLE
from vidqa.platforms._base import RUN_SCRIPT, SPEC_FILE, Platform


def files_of(made: DryRun) -> dict[str, str]:
    """Text by file name: the spec of the job, and the script to submit, or else the command to run."""
    command = {RUN_SCRIPT: f"#!/bin/bash\nexec {made.rendered.shown}\n"}
    return {SPEC_FILE: made.spec_toml, **(made.rendered.files or command)}


def write(made: DryRun, where: Platform, folder: Path) -> str:
    """Write the files of a dry run into `folder`. Returns the command that submits them, "" where there is none.

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
