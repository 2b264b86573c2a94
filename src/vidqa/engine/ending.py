"""How a process of the engine ends."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn


def leave(code: int, *, orderly: bool = True) -> NoReturn:
    """End this process, after what libraries asked to be called at its end (`orderly`). What Python would do then is
    free all that they hold, piece by piece, which takes two seconds in which a GPU stays taken."""
    if orderly:
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
