"""The engine under a profiler, from outside: what benchmarks/breakdown.py starts in place of `python -m vidqa.engine`.

    python benchmarks/profiled_engine.py TRACE.json FIRST STEPS train --spec spec.toml --run-dir run

Rank 0 records STEPS optimizer steps from the end of step FIRST on and writes them as a Chrome trace. The engine knows
nothing of it: a hook on optimizer steps, which PyTorch offers to everyone, tells where one step ends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from vidqa.contract.environment import rank
from vidqa.engine import __main__ as engine


class Recorder:
    """Counts optimizer steps; between two of them the profiler runs."""

    def __init__(self, path: Path, first: int, steps: int) -> None:
        self.path, self.first, self.steps, self.done, self.began = path, first, steps, 0, 0.0
        cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self.profiler = profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True)

    def __call__(self, *_: Any) -> None:
        self.done += 1
        if self.done == self.first:
            _settle()
            self.profiler.start()
            self.began = time.perf_counter()
        elif self.done == self.first + self.steps:
            _settle()
            seconds = time.perf_counter() - self.began
            self.profiler.stop()
            self.profiler.export_chrome_trace(str(self.path))
            self.path.with_suffix(".facts.json").write_text(json.dumps({"seconds": seconds, "steps": self.steps}))


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    trace, first, steps = sys.argv[1:4]
    sys.argv[1:4] = []
    if rank() == 0:
        register_optimizer_step_post_hook(Recorder(Path(trace), int(first), int(steps)))
    engine._leave(engine.main())
