"""The decode workers of a process, and none of its other children: a test session has daemons among its own."""

from __future__ import annotations

from pathlib import Path


def workers_of(parent: int) -> list[int]:
    """The living decode workers among the descendants of a process."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    below, waiting = [], [parent]
    while waiting:
        found = children.get(waiting.pop(), [])
        below += found
        waiting += found
    return [pid for pid in below if is_worker(pid)]


def is_worker(pid: int) -> bool:
    """Whether the process is a decode worker, and alive: one that has ended has no command line."""
    try:
        return b"vidqa.video.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
