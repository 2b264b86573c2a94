"""The TCP addresses on which a process and its descendants listen, from /proc."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"


def tree(pid: int) -> set[int]:
    """The process and its descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def addresses(pid: int) -> set[str]:
    """The addresses on which the process and its descendants listen for TCP now."""
    held = set()
    for each in tree(pid):
        with suppress(OSError):
            held |= {os.readlink(handle) for handle in Path(f"/proc/{each}/fd").iterdir()}
    return {address for inode, address in _listening() if f"socket:[{inode}]" in held}


def outside(found: set[str]) -> set[str]:
    """The addresses outside the loopback."""
    return {address for address in found if not ipaddress.ip_address(address).is_loopback}


def _listening() -> list[tuple[str, str]]:
    """(inode, address) of every listening TCP socket of this machine."""
    rows = []
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == LISTENS:
                words = bytes.fromhex(fields[1].partition(":")[0])  # 32 bits at a time, in the machine's own order
                turned = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                address = ipaddress.ip_address(turned)
                rows.append((fields[9], str(getattr(address, "ipv4_mapped", None) or address)))
    return rows
