"""Limits on clients: the number of connections, the time to send a header and to read a response, and the size, time,
rate and number of request bodies."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from vidqa.core.problem import ProblemError
from vidqa.serving._base import MB, Limits
from vidqa.serving.problems import BUSY, REQUEST, TOO_LARGE

KB = 1 << 10
PROTECTED_S = 1.0  # minimum age at which an upload may be dropped for a new one


class Connection(H11Protocol):
    """A connection that is closed if no complete header arrives in time, or if its client stops reading.

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


@dataclass(eq=False)
class _Upload:
    """A body in transfer. Its deadline is extended with each byte."""

    deadline: asyncio.Timeout
    began: float = field(default_factory=time.monotonic)
    size: int = 0

    def rate(self, now: float) -> float:
        """Bytes per second."""
        return self.size / (now - self.began)


class Uploads:
    """At most `most` bodies at a time. A new one replaces the slowest, so that slow clients cannot block others."""

    def __init__(self, limits: Limits, most: int) -> None:
        self.limits, self.most = limits, most
        self._running: set[_Upload] = set()

    async def read(self, request: Request) -> bytes:
        """The body of a request; `request.state.is_read` is set when it is complete or has ended. Raises SERVE_REQUEST,
        SERVE_TOO_LARGE, SERVE_BUSY, ClientDisconnect."""
        limits = self.limits
        too_large = TOO_LARGE.at("body", f"more than {limits.body_bytes / MB:.0f} MB")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise REQUEST.error("Content-Type", "it is not application/json")
        with suppress(ValueError):
            if int(request.headers.get("content-length", "0")) > limits.body_bytes:
                raise ProblemError([too_large])
        self._make_room()
        body, upload = bytearray(), _Upload(asyncio.timeout(limits.body_start_s))
        self._running.add(upload)
        try:
            async with upload.deadline:
                async for chunk in request.stream():
                    body += chunk
                    upload.size = len(body)
                    if upload.size > limits.body_bytes:
                        raise ProblemError([too_large])
                    self._extend(upload)
        except TimeoutError:
            message = f"{upload.size / KB:.0f} KB after {time.monotonic() - upload.began:.1f} s"
            rule = f"it must come at {limits.body_rate / KB:.0f} KB/s or faster and within {limits.body_s:g} s"
            request.state.is_read = True
            raise REQUEST.error("body", f"{message}; {rule}") from None
        finally:
            self._running.discard(upload)
        request.state.is_read = True
        return bytes(body)

    def _extend(self, upload: _Upload) -> None:
        limits = self.limits
        seconds = min(limits.body_s, limits.body_start_s + upload.size / limits.body_rate)
        if not upload.deadline.expired():
            age = time.monotonic() - upload.began
            upload.deadline.reschedule(asyncio.get_running_loop().time() + seconds - age)

    def _make_room(self) -> None:
        running = [upload for upload in self._running if not upload.deadline.expired()]
        if len(running) < self.most:
            return
        now = time.monotonic()
        old = [upload for upload in running if now - upload.began > PROTECTED_S]
        if not old:
            raise BUSY.error("server", f"{len(running)} requests are being received")
        slowest = min(old, key=lambda upload: upload.rate(now))
        self._running.discard(slowest)
        slowest.deadline.reschedule(asyncio.get_running_loop().time())
