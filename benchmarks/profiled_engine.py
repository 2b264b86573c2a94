"""The engine with one optimizer step of rank 0 under the profiler; started by `throughput.py --profile`.

python benchmarks/profiled_engine.py TRACE.json STEP train --spec spec.toml --run-dir run
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from kernel_times import profiled

if __name__ == "__main__":
    from vidqa.engine import __main__ as engine

    trace, number = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
    with profiled(number, trace) if os.environ["RANK"] == "0" else nullcontext():
        code = engine.main()
    engine._exit_process(code)
