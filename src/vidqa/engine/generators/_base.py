"""The interface of generators: planned prompts in, token ids with log-probabilities out."""

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
    """How tokens are chosen; `temperature` 0 takes the likeliest one. Sampling depends on the request's id and on
    `seed` alone. `top_k` 0 and `top_p` 1 leave every token in. The repetition penalty divides the logits of tokens of
    prompt and answer; presence and frequency penalties are subtracted from those of the answer, once for each token
    that it has and once for each time."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def is_penalised(self) -> bool:
        """Whether tokens that were there before are less likely."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class Constraint(Protocol):
    """Which tokens may come next in an answer."""

    def allowed(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Bool [V], at least one of them true: which tokens may follow those of the answer so far. What the model has
        beyond V may not. It is asked once for every token, each time with one more."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt: `token_ids` int32 [S] with a placeholder for every token of its media, of which `plans` says what they
    are. `frames` waits for their pixels, uint8 [n, 3, height, width] each, and raises a ProblemError where there are
    none; it is called when the prompt's turn has come. Requests with the same `prefix_key` have their first `prefix`
    tokens and all their media in common.

    `on_token` hears each token of the answer as soon as the host knows it, with its log-probability (nan without
    `logprobs`). `cancelled` is looked at before the prompt is read and before each step. With `top_logprobs`, the
    result names as many of the likeliest tokens at each step. With `candidates`, none of them empty, nothing is
    generated: each is scored as the answer. `draws` names what is drawn, in place of the id, where a request that is
    asked again shall be answered alike. With `tempered`, log-probabilities are those of softmax(logits / temperature),
    which tokens are drawn from."""

    id: str
    token_ids: np.ndarray
    sampling: Sampling
    stop_ids: tuple[int, ...]
    plans: Sequence[FramePlan] = ()
    frames: Callable[[], Sequence[np.ndarray]] = list
    logprobs: bool = False
    prefix: int = 0
    prefix_key: bytes = b""
    on_token: Callable[[int, float], None] | None = None
    cancelled: Callable[[], bool] = _never
    constraint: Constraint | None = None
    top_logprobs: int = 0
    candidates: tuple[tuple[int, ...], ...] = ()
    draws: str = ""
    tempered: bool = False

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)

    @property
    def most(self) -> int:
        """Tokens of the prompt and of its longest answer."""
        return self.length + (max(map(len, self.candidates)) if self.candidates else self.sampling.max_tokens)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request. "stop": the last of `token_ids` is a stop id; "length": cut off at `max_tokens`;
    "cancelled": `token_ids` are those until then; "scored": `scores` has the log-probability of each candidate, the sum
    of its tokens'; "error": `problems` say why there are none. `logprobs` has the natural log-probability of each token
    and `top_logprobs` the likeliest tokens at its place with theirs, likeliest first, if requested. All of them are
    under the model's own distribution, before penalty, constraint and cuts, and temperature unless `tempered`."""

    id: str
    finish_reason: Literal["stop", "length", "cancelled", "scored", "error"]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    scores: tuple[float, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The model to open: in `folder`, or the adapter in it on the model in `base`. `planner` is the one that
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

    def generate(self, requests: Iterable[Request | None]) -> Iterator[list[Result]]:
        """The results of all requests, some at a time, as they are finished and in any order. Requests are taken as
        they can be worked on. None among them says that there is nothing to take now: the session goes on with what it
        has and asks again later; when it has nothing, it yields an empty list, so that the caller can wait. A result
        depends on its request alone; one that fails leaves the others as they are."""

    def close(self) -> None:
        """Free the model, and end its process if it has its own."""


@dataclass(frozen=True)
class Generator:
    """A way of generating. `open` loads the model."""

    name: str
    open: Callable[[Settings], Session]


def ready(request: Request, longest: int) -> Sequence[np.ndarray] | Result:
    """The frames of a request that can be answered, else its result: every generator's first step."""
    if request.cancelled():
        return Result(request.id, "cancelled")
    if request.most > longest:
        answer = request.most - request.length
        message = f"{request.length} tokens; {longest - answer} allowed beside an answer of {answer}"
        return Result(request.id, "error", problems=(SAMPLE_TOO_LONG.at(request.id, message),))
    try:
        return request.frames()
    except ProblemError as failed:
        return Result(request.id, "error", problems=tuple(failed.problems))
