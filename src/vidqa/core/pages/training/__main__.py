"""Writes the page of a training: python -m vidqa.core.pages.training RUN_FOLDER

The engine does so when a training ends, in whatever way it can still tell of. It may be done at any time, also while
the training runs or after a kill.
"""

import sys
from pathlib import Path

from vidqa.core.cli import note
from vidqa.core.files import write_text
from vidqa.core.pages.training.groups import Posters
from vidqa.core.pages.training.page import report
from vidqa.core.pages.training.read import read_training


def main(run: Path, posters: Posters = lambda line: []) -> int:
    """Returns the exit code. `posters` gives frames of completions; see `groups`."""
    training = read_training(run)
    if not training.plan and not training.events:
        note(f"{run} holds no training to report on")
        return 2
    path = training.run / "report.html"
    try:
        write_text(path, report(training, posters))
    except OSError as failed:
        note(f"the report cannot be written: {failed}")
        return 4
    note(f"report: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
