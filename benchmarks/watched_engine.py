"""The engine with its allocator watched, with or without what it does for it: what benchmarks/mapping.py starts.

    python benchmarks/watched_engine.py STEPS.json WAY train --spec spec.toml --run-dir run

The engine knows nothing of it: a hook on optimizer steps, which PyTorch offers to everyone, tells where one step ends,
and functions are exchanged before it begins.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

WAYS = {
    "now": "as it is",
    "unmapped": "no memory is mapped ahead",
    "copied": "gradients of one rank are copied to FSDP's stream",
    "before": "neither memory mapped ahead nor gradients where they are",
}
GIB = 1024**3


class Watch:
    """What the allocator has done by the end of every step, since the process began."""

    def __init__(self, path: Path) -> None:
        self.path, self.steps = path, list[dict[str, float]]()

    def __call__(self, *_: Any) -> None:
        import torch

        found = torch.cuda.memory_stats() if torch.cuda.is_available() else {}
        reserved = "reserved_bytes.all."
        step = {"mapped_gib": "allocated", "unmapped_gib": "freed", "reserved_gib": "current"}
        told = {name: found.get(reserved + key, 0) / GIB for name, key in step.items()}
        self.steps.append({"at": time.perf_counter(), "retries": found.get("num_alloc_retries", 0), **told})
        self.path.write_text(json.dumps(self.steps))


def change(way: str) -> None:
    """Take away what `way` does without."""
    from torch.distributed.fsdp import FSDPModule

    from vidqa.engine.training import warmup

    if way in ("unmapped", "before"):
        warmup.map_memory = lambda *_: None
    if way in ("copied", "before"):
        FSDPModule.set_custom_reduce_scatter = lambda *_: None  # type: ignore[method-assign]


if __name__ == "__main__":
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from vidqa.contract.environment import rank
    from vidqa.engine import __main__ as engine

    path, way = Path(sys.argv[1]), sys.argv[2]
    sys.argv[1:3] = []
    change(way)
    if rank() == 0:
        register_optimizer_step_post_hook(Watch(path))
    engine._leave(engine.main())
