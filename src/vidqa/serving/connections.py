"""HTTP connections with bounds on their number, the time of a header, and the time in which a client must read."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vidqa.serving._base import Limits


class Connection(H11Protocol):
    """A connection that is closed when no whole header comes in time, or when its client stops reading.

    A new one beyond the limit replaces the oldest without a request, which may be itself.
    """

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits
        self.header_timer: asyncio.TimerHandle | None = None
        self.read_timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened = self.loop.time()
        self._watch_header()
        if len(self.connections) > self.limits.connections:
            idle = [other for other in self.connections if isinstance(other, Connection) and not other.has_request]
            min(idle, key=lambda other: other.opened).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_header()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self.read_timer)
        self.read_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _stop(self.header_timer)
        _stop(self.read_timer)

    def _watch_header(self) -> None:
        if self.has_request:
            _stop(self.header_timer)
            self.header_timer = None
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(self.limits.header_s, self.transport.abort)

    def _watch_reading(self) -> None:
        if self.read_timer is None and self.transport.get_write_buffer_size():
            self.read_timer = self.loop.call_later(self.limits.read_s, self._end_unread)

    def _end_unread(self) -> None:
        self.read_timer = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
