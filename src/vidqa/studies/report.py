"""The report of a study: its table, the best spec, and a page."""

from __future__ import annotations

from pathlib import Path

from vidqa.contract.cli import Result
from vidqa.studies.status import status


def report(folder: Path) -> Result:
    return status(folder)
