"""The engine with a loop of matrix products after every step, added from outside; started by benchmarks/guard.py.

    python benchmarks/guarded_engine.py TIMES.json train --spec spec.toml --run-dir run

The products are a reference without noise: everything that slows the GPU (power, heat, a neighbour) slows both.
The engine is unchanged: a public hook of PyTorch on optimizer steps marks the end of each step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Products:
    """Square products of random bf16 matrices: about a third of a second on an H100."""

    def __init__(self) -> None:
        cuda = torch.cuda.is_available()
        self.side, self.times, device = (8192, 200, "cuda") if cuda else (256, 20, "cpu")
        self.flops = 2 * self.side**3 * self.times
        self.left, self.right = torch.randn(2, self.side, self.side, device=device).bfloat16().unbind()
        self.out = torch.empty_like(self.left)

    def seconds(self) -> float:
        settle()
        started = time.perf_counter()
        for _ in range(self.times):
            torch.mm(self.left, self.right, out=self.out)
        settle()
        return time.perf_counter() - started


class Watch:
    """Records the seconds of every step, and of the products after it."""

    def __init__(self, path: Path) -> None:
        self.path, self.steps, self.last = path, list[tuple[float, float]](), 0.0
        self.products: Products | None = None

    def __call__(self, *_: Any) -> None:
        settle()
        step = time.perf_counter() - self.last
        if self.products is None:  # the first step is all warm-up
            self.products = Products()
            self.products.seconds()
        else:
            self.steps.append((step, self.products.seconds()))
            self.path.write_text(json.dumps({"flops": self.products.flops, "steps": self.steps}))
        self.last = time.perf_counter()


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    from vidqa.engine import __main__ as engine

    register_optimizer_step_post_hook(Watch(Path(sys.argv.pop(1))))
    engine._exit_process(engine.main())
