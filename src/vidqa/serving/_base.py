"""Foundations of the server: its limits, its key and address, and the interface to the thread that owns the model."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from vidqa.core.cli import USAGE
from vidqa.data.record import MediaRef
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import Planner, Sample
from vidqa.serving.problems import ADDRESS

MB = 1 << 20
SHORTEST_KEY = 16  # characters; a shorter one could be guessed, and could not be redacted in logs
NEED_KEY = "Set VIDQA_API_KEY in the environment, or omit --host: then only this machine reaches the server."
LONGER_KEY = "Set a longer one, for example the output of `openssl rand -hex 24`."
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the server. `queue` requests may wait beside those being answered; `body_s` and `fetch_s` bound the
    time to receive a body and to download a file. After `body_start_s` a body must arrive at `body_rate` bytes/s. A
    client has `header_s` to send the header of a request, and `read_s` to read the response."""

    body_bytes: int = 100 * MB
    media_bytes: int = 256 * MB
    queue: int = 64
    body_s: float = 60.0
    body_start_s: float = 5.0
    body_rate: int = 1 << 14
    connections: int = 512
    header_s: float = 10.0
    read_s: float = 60.0
    fetch_s: float = 30.0


def served_key(host: str, key: str | None) -> str | None:
    """The key that clients need. Raises USAGE."""
    if key is None and host not in LOOPBACK:
        raise USAGE.error("--host", f"{host} is reachable from other machines, but VIDQA_API_KEY is not set", NEED_KEY)
    if key is not None and len(key) < SHORTEST_KEY:
        raise USAGE.error("VIDQA_API_KEY", f"{len(key)} characters; {SHORTEST_KEY} are needed", LONGER_KEY)
    return key


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SERVE_ADDRESS."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as failed:
        listener.close()
        raise ADDRESS.error(f"{host}:{port}", str(failed)) from failed
    return listener


class Backend(Protocol):
    """The generator behind the server. `planner` plans prompts for it; prompt and answer have at most `longest` tokens;
    `batch_size` prompts are answered at a time."""

    planner: Planner
    longest: int
    batch_size: int

    def headers(self, media: Sequence[MediaRef]) -> list[Future[Any]]:
        """Futures of a VideoMeta, an ImageMeta or a Problem for each medium, read in a process that may hang or die."""

    def submit(self, sample: Sample, request: Request, done: Callable[[Result], None]) -> None:
        """Queue a request for the sample, whose media the backend decodes. `done` is called for every request, also
        when the backend fails or closes. It and `request.on_token` run in the generator thread and must not block."""

    @property
    def waiting(self) -> int:
        """The number of queued requests."""

    @property
    def is_answering(self) -> bool:
        """Whether the backend is alive."""
