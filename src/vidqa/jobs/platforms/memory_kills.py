"""The number of processes that the kernel killed for lack of memory, from the counter of our control group.

Only this counter tells an out-of-memory kill from a SIGKILL of a person or program.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class Kills(NamedTuple):
    """The counter `number` of the file `where`."""

    where: Path
    number: int


def kills(own: Path = OWN, cgroups: Path = CGROUPS) -> Kills | None:
    """The counter of this process's control group; None where there is none."""
    for where in _files(own, cgroups):
        try:
            match = re.search(r"^oom_kill (\d+)$", where.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            continue
        if match:
            return Kills(where, int(match[1]))
    return None


def evidence_since(before: Kills | None, now: Kills | None) -> str:
    """The line for a job's log; empty if no process was killed for memory in between."""
    if before is None or now is None or now.where != before.where or now.number <= before.number:
        return ""
    return f"the kernel ended {now.number - before.number} process(es) for want of memory: oom_kill in {now.where}"


def _files(own: Path, cgroups: Path) -> list[Path]:
    """Where the counter may be, in control groups v2 and v1. A container may show the host's name of the group while
    its own group is the root."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    paths = []
    for _, controllers, group in (line for line in lines if len(line) == 3):
        below = group.lstrip("/")
        if not controllers:
            roots = [cgroups, cgroups / "unified"]
            paths += [folder / "memory.events" for root in roots for folder in dict.fromkeys((root / below, root))]
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            paths += [folder / "memory.oom_control" for folder in dict.fromkeys((root / below, root))]
    return paths
