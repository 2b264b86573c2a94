"""End a process together with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent `parent` ends, even if this process hangs (Linux; elsewhere only
    a parent that has already ended is noticed).

    For the kernel the parent is the thread that started this process, so that thread must live as long as the parent is
    needed. Children of this process are not killed with it, unless they call this function themselves.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call of prctl
        sys.exit(1)
