"""The decode workers of a process, without its other children: a test session has daemons among its own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from forked import DECODE_WORKER


def workers_of(parent: int) -> list[int]:
    """The living decode workers among the descendants of a process."""
    below = [parent]
    for pid in below:
        tasks: list[Path] = []
        with suppress(OSError):  # it has ended
            tasks += Path(f"/proc/{pid}/task").iterdir()
        for task in tasks:
            with suppress(OSError):
                below += map(int, (task / "children").read_text().split())
    return [pid for pid in below if is_worker(pid)]


def is_worker(pid: int) -> bool:
    """Whether the process is a decode worker, and alive: an ended process has no command line."""
    place = Path(f"/proc/{pid}")
    try:
        line, name = (place / "cmdline").read_bytes(), (place / "comm").read_text().strip()
        return b"vidqa.video.worker" in line or (name == DECODE_WORKER and bool(line))
    except OSError:
        return False
