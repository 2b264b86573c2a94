"""The engine on a host without memory for rank 1's copy of what it saves, allocated when that rank first copies.

torchrun ... failed_copy.py train --spec spec.toml --run-dir RUN
"""

from __future__ import annotations

import runpy
from typing import Any, NoReturn

from vidqa.core.environment import rank
from vidqa.engine.training import async_save
from vidqa.engine.training.async_save import PinnedSnapshot


def main() -> None:
    reserve = PinnedSnapshot.reserve

    def late(snapshot: PinnedSnapshot, tensors: Any) -> None:
        if not snapshot._launched.is_set():
            reserve(snapshot, tensors)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("no memory on rank 1")

    if rank() == 1:
        PinnedSnapshot.reserve, async_save.host_memory_like = late, refuse  # type: ignore[method-assign]
    runpy.run_module("vidqa.engine", run_name="__main__")


if __name__ == "__main__":
    main()
