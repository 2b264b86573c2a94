"""Receives request bodies with bounds on their size, time, rate and number."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import Request

from vidqa.core.problem import ProblemError
from vidqa.serving._base import MB, Limits
from vidqa.serving.problems import BUSY, REQUEST, TOO_LARGE

KB = 1 << 10
PROTECTED_S = 1.0  # an older upload may be dropped for a new one


@dataclass(eq=False)
class _Upload:
    """A body in transfer. Its deadline moves on with each byte."""

    deadline: asyncio.Timeout
    began: float = field(default_factory=time.monotonic)
    size: int = 0

    def rate(self, now: float) -> float:
        """Bytes a second."""
        return self.size / (now - self.began)


class Uploads:
    """At most `most` bodies at a time. A new one takes the place of the slowest, so that slow clients cannot keep
    others out."""

    def __init__(self, limits: Limits, most: int) -> None:
        self.limits, self.most = limits, most
        self._running: set[_Upload] = set()

    async def read(self, request: Request) -> bytes:
        """The body of a request; `request.state.is_read` is set when nothing more will come. Raises
        SERVE_REQUEST, SERVE_TOO_LARGE, SERVE_BUSY, ClientDisconnect."""
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
        if len(self._running) < self.most:
            return
        now = time.monotonic()
        old = [upload for upload in self._running if now - upload.began > PROTECTED_S]
        if not old:
            raise BUSY.error("server", f"{len(self._running)} requests are being received")
        slowest = min(old, key=lambda upload: upload.rate(now))
        self._running.discard(slowest)
        slowest.deadline.reschedule(asyncio.get_running_loop().time())
