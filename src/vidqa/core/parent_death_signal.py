"""A process that is of no use without the one that started it ends with it, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def end_with(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends, the process that started it, even where this one hangs
    (Linux; elsewhere only a parent that has ended already is noticed).

    To the kernel a parent is the thread that started a process, so that has to be one that lasts as long as the
    parent is of use. What this process starts is not killed with it, unless it asks for that itself.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be asked for
        sys.exit(1)
