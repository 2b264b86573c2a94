"""What a generator is: planned prompts in, token ids with log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch

from vidqa.contract.problem import Problem, ProblemError
from vidqa.planning.problems import SAMPLE_TOO_LONG
from vidqa.planning.samples import Planner
from vidqa.video.types import FramePlan


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; `temperature` 0 takes the likeliest one. What is drawn depends on the request's id and on
    `seed` alone. `top_k` 0 and `top_p` 1 leave every token in."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt: `token_ids` int32 [S] with a placeholder for every token of its media, of which `plans` says what they
    are. `frames` waits for their pixels, uint8 [n, 3, height, width] each, and raises a ProblemError where there are
    none; it is called when the prompt's turn has come. Requests with the same `prefix_key` have their first `prefix`
    tokens and all their media in common."""

    id: str
    token_ids: np.ndarray
    sampling: Sampling
    stop_ids: tuple[int, ...]
    plans: Sequence[FramePlan] = ()
    frames: Callable[[], Sequence[np.ndarray]] = list
    logprobs: bool = False
    prefix: int = 0
    prefix_key: bytes = b""

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)

    @property
    def most(self) -> int:
        """Tokens of the prompt and of its longest answer."""
        return self.length + self.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a request. "stop": the last of `token_ids` is a stop id; "length": cut off at `max_tokens`; "error":
    `problems` say why there are none. `logprobs` has the natural log-probability of each token under the model's own
    distribution, before temperature, penalty and cuts, where the request wants them."""

    id: str
    finish_reason: Literal["stop", "length", "error"]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What is opened: the model in `folder`, or the adapter in it on the model in `base`. `planner` is the one that
    planned the prompts; prompt and answer have at most `longest` tokens. `batch_size` is how many prompts may be
    answered at a time."""

    folder: Path
    base: Path | None
    dtype: torch.dtype
    device: torch.device
    planner: Planner
    longest: int
    batch_size: int


class Session(Protocol):
    """A model that answers."""

    def generate(self, requests: Iterable[Request]) -> Iterator[list[Result]]:
        """The results of all requests, some at a time, as they are finished and in any order. Requests are taken as
        they can be worked on. A result depends on its request alone; one that fails leaves the others as they are."""

    def close(self) -> None:
        """Let go of the model, and of the process that holds it where it is another one."""


@dataclass(frozen=True)
class Generator:
    """A way of generating. `open` loads the model."""

    name: str
    open: Callable[[Settings], Session]


def ready(request: Request, longest: int) -> Sequence[np.ndarray] | Result:
    """The frames of a request that can be answered, else its result: every generator's first step."""
    if request.most > longest:
        answer = request.sampling.max_tokens
        message = f"{request.length} tokens; {longest - answer} allowed beside an answer of {answer}"
        return Result(request.id, "error", problems=(SAMPLE_TOO_LONG.at(request.id, message),))
    try:
        return request.frames()
    except ProblemError as failed:
        return Result(request.id, "error", problems=tuple(failed.problems))
