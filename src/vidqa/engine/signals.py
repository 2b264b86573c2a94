"""SIGTERM, SIGUSR1 and Ctrl-C ask a run to save and stop; the training loop looks at the flag between steps."""

from __future__ import annotations

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """`asked` is the signal's name once one has come."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name
