"""SIGTERM, SIGUSR1 and Ctrl-C ask a run to save and stop; the training loop checks for it between steps."""

from __future__ import annotations

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """`signal_name` is the name of the received signal, or None."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name
