"""The engine with weights that arrive late: whatever computes before they are read computes with something else.

torchrun ... late_weights.py train --spec spec.toml --run-dir RUN
"""

from __future__ import annotations

import os
import runpy
import time

LATE_S = 4.0


def main() -> None:
    read = os.preadv
    moments: list[float] = []  # of reads; nothing is read until LATE_S after the first

    def late(*arguments: object) -> int:
        moments.append(time.monotonic())
        time.sleep(max(0.0, moments[0] + LATE_S - time.monotonic()))
        return read(*arguments)  # type: ignore[arg-type]

    os.preadv = late
    runpy.run_module("vidqa.engine", run_name="__main__")


if __name__ == "__main__":
    main()
