"""The interface between the HTTP side and the thread that owns the model, and the server's limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from vidqa.data.record import MediaRef
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import Planner, Sample

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the server. `queue` requests may wait beside those being answered; `body_s` and `fetch_s` bound the
    time to receive a body and to download a file. After `body_start_s` a body must come at `body_rate` bytes/s. A
    client has `header_s` for the header of a request, and `read_s` to read what is sent."""

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


class Backend(Protocol):
    """The generator behind the server. `planner` plans prompts for it; prompt and answer have at most `longest` tokens;
    `most` prompts are answered at a time."""

    planner: Planner
    longest: int
    most: int

    def headers(self, media: Sequence[MediaRef]) -> list[Future[Any]]:
        """For each medium a VideoMeta, an ImageMeta or a Problem, read in a process that may hang or die."""

    def submit(self, sample: Sample, request: Request, done: Callable[[Result], None]) -> None:
        """Queue a request for the sample, whose media the backend decodes. `done` is called for every request, also
        when the backend fails or closes. It and `request.on_token` run in the generator thread and must not block."""

    @property
    def waiting(self) -> int:
        """The number of queued requests."""

    @property
    def is_answering(self) -> bool:
        """Whether it still answers."""
