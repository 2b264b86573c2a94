"""The types that the HTTP side and the generator thread share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from vidqa.contract.problem import Problem
from vidqa.dataset.record import MediaRef
from vidqa.planning.samples import Planner, Sample

MB = 1 << 20
Top = tuple[tuple[int, float], ...]  # the likeliest tokens at a place, with their log-probabilities


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


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the tokens of an answer are chosen, as `generators.Sampling` has it."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class Mask(Protocol):
    """Which tokens may come next."""

    problem: Problem | None  # why the answer cannot keep to its form any longer

    def allowed(self, token_ids: Sequence[int]) -> np.ndarray:
        """Bool [V], for the token after the answer's `token_ids` so far."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended: "stop", "length", "cancelled", or "error" with `problems`."""

    reason: str
    top_logprobs: Sequence[Top] = ()
    problems: Sequence[Problem] = ()


@dataclass(eq=False)
class Order:
    """One answer to generate. Sampling depends on `draws` and the seed alone; `id` is unique.

    `take` is called with each token and its log-probability (nan without `logprobs`), and `done` with the end of the
    answer; both in the generator thread, which they must not block. Setting `unwanted` ends the answer early.
    """

    id: str
    draws: str
    sample: Sample
    token_ids: np.ndarray
    drawing: Drawing
    take: Callable[[int, float], None]
    done: Callable[[Outcome], None]
    logprobs: bool = False
    top_logprobs: int = 0
    mask: Mask | None = None
    unwanted: bool = field(default=False)


class Backend(Protocol):
    """The generator behind the server. `planner` plans prompts for it; prompt and answer have at most `longest` tokens;
    `most` prompts are answered at a time."""

    planner: Planner
    longest: int
    most: int

    def headers(self, media: Sequence[MediaRef]) -> list[Future[Any]]:
        """For each medium a VideoMeta, an ImageMeta or a Problem, read in a process that may hang or die."""

    def submit(self, order: Order) -> None:
        """Queue an order. `done` is called for every order, also when the backend fails or closes."""

    @property
    def waiting(self) -> int:
        """The number of queued orders."""

    @property
    def is_answering(self) -> bool:
        """Whether it still answers."""
