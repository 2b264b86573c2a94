"""The engine on a disk that finishes no file before training has taken some more steps.

    torchrun ... slow_disk.py STEPS train --spec spec.toml --run-dir RUN

Every fsync waits until RUN/metrics.jsonl tells of STEPS steps, so that a save that holds up the steps never ends.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

LIMIT_S = 600.0


def main() -> None:
    steps, run_dir = int(sys.argv.pop(1)), Path(sys.argv[-1])
    to_disk = os.fsync

    def late(handle: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len((run_dir / "metrics.jsonl").read_text().splitlines()) < steps:
            if time.monotonic() > deadline:
                raise OSError("the steps wait for the disk")
            time.sleep(0.02)
        to_disk(handle)

    os.fsync = late
    runpy.run_module("vidqa.engine", run_name="__main__")


if __name__ == "__main__":
    main()
