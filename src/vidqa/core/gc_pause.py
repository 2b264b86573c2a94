"""Pause Python's cycle collector while many objects without cycles are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Disable cycle collection inside the block: records and samples have no cycles, and traversing millions of them
    often takes as long as creating them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
