"""Numbers of the device that the host waits for without stopping the device."""

from __future__ import annotations

import torch


class Readback:
    """A vector on its way to the host. What its stream is given afterwards goes on while the host waits and works: the
    host reports a step and prepares the next one while the device still updates the weights."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)
        self._copied = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None

    def wait(self) -> list[float]:
        if self._copied is not None:
            self._copied.synchronize()
        return self._values.tolist()
