"""The decode workers of a process, without its other children: a test session has daemons among its own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from forked import DECODE_WORKER


def pool_workers() -> list[int]:
    """The living decode workers that this process started. Its other descendants may be processes of other tests: all
    processes of a test session fork from one parent (`forked.py`), which is a child of one of them."""
    return [pid for pid in _children(os.getpid()) if is_worker(pid)]


def workers_of(parent: int) -> list[int]:
    """The living decode workers among the descendants of a process that a test started."""
    descendants = [parent]
    for pid in descendants:
        descendants += _children(pid)
    return [pid for pid in descendants if is_worker(pid)]


def _children(parent: int) -> list[int]:
    pids, tasks = list[int](), list[Path]()
    with suppress(OSError):  # it has ended
        tasks += Path(f"/proc/{parent}/task").iterdir()
    for task in tasks:
        with suppress(OSError):
            pids += map(int, (task / "children").read_text().split())
    return pids


def is_worker(pid: int) -> bool:
    """Whether the process is a decode worker, and alive: an ended process has no command line."""
    place = Path(f"/proc/{pid}")
    try:
        line, name = (place / "cmdline").read_bytes(), (place / "comm").read_text().strip()
        return b"vidqa.video.worker" in line or (name == DECODE_WORKER and bool(line))
    except OSError:
        return False
