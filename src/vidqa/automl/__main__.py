"""The controller of a study as a process: python -P -m vidqa.automl --study FOLDER"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from vidqa.core.cli import Parser, Result, run


def main(options: argparse.Namespace) -> Result:
    from vidqa.automl.controller import control
    from vidqa.preflight import launch_gate

    signal.signal(signal.SIGTERM, _interrupt)
    history = control(options.study, launch_gate.of_engine("vidqa"))
    return Result({"finished": history.finished, "stopped": history.stopped, "winner": history.winner})


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End without the jobs; the next controller finds them."""
    raise KeyboardInterrupt


parser = Parser(
    "Run the controller of a study to its end. scripts/run_automl.py start does this in the background.",
    ["python -P -m vidqa.automl --study study"],
)
parser.add_argument("--study", type=Path, required=True, help="folder that run_automl.py plan wrote")

if __name__ == "__main__":
    sys.exit(run(parser, main))
