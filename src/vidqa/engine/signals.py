"""Ways to end an engine process: SIGTERM, SIGUSR1 and Ctrl-C ask a run to save and stop; `hard_exit` ends at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """A handler of stop signals. `signal_name` is the name of the received signal, or None."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name


def hard_exit(code: int, *, orderly: bool = True) -> NoReturn:
    """End the process without Python's teardown, which takes two seconds with the GPU still held. With `orderly`,
    atexit handlers run first."""
    if orderly:
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
