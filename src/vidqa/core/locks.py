"""File locks between processes. The system releases them when their holder ends, however it ends.

    with locked(folder / ".lock", wait_s=3600.0):
        ...

Only the error codes for a lock held by another process count as busy. A file system without locks (ENOLCK, ENOSYS: some
mounts of cluster disks) is a problem of its own, because waiting would never end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vidqa.core.cli import FILE_REFUSED, note
from vidqa.core.problem import Code, Exit

HELD = (errno.EAGAIN, errno.EACCES)
POLL_S = 0.05
SAID_AFTER_S = 10.0
LOCKING_DISK = "use a local disk, or a mount that can lock files (NFS: without nolock; Lustre: with flock)"

LOCK_HELD = Code(
    "LOCK_HELD",
    "Another process held a lock beyond the timeout.",
    "Find that process with `fuser FILE`, end it if it hangs, and run this again.",
    Exit.ENVIRONMENT,
)
BUSY = Code(
    "BUSY",
    "Another process controls the study, runs the loop, or launches a job on this machine.",
    "Wait until it ends, or stop it (a study: python scripts/run_automl.py stop --study FOLDER), then run this again; "
    "scripts/run_automl.py status and scripts/run_deft.py status work at any time.",
    Exit.NOT_DONE,
)


def try_lock(handle: int, path: Path, *, shared: bool = False) -> bool:
    """Lock an open file; return False if another process holds the lock. Closing the handle releases it. Raises
    ENV_FILE_REFUSED."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as refused:
        if refused.errno in HELD:
            return False
        raise FILE_REFUSED.error(path, f"locking it failed: {refused.strerror}", LOCKING_DISK) from refused
    return True


@contextmanager
def locked(path: Path, *, wait_s: float, busy: Code = LOCK_HELD) -> Iterator[int]:
    """Hold the lock of a file, which is created if missing; yields its handle. A long wait is reported once. Raises
    ENV_FILE_REFUSED, `busy` after `wait_s` seconds, and OSError if the file cannot be opened."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        began, is_reported, pause = time.monotonic(), False, 0.001
        while not try_lock(handle, path):
            waited = time.monotonic() - began
            if waited >= wait_s:
                how_long = f" after {wait_s:.0f} s" if wait_s else ""
                raise busy.error(path, f"another process holds its lock{how_long}")
            if waited > SAID_AFTER_S and not is_reported:
                note(f"waiting for {path}, locked by another process")
                is_reported = True
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)
        yield handle
    finally:
        os.close(handle)
