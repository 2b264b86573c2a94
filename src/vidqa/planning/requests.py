"""Requests to a generator and their results, shared by the engine, which answers them, and the server, which must not
import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from vidqa.core.problem import Problem
from vidqa.video.types import FramePlan

TopLogprobs = tuple[tuple[int, float], ...]  # the likeliest tokens at a position with their log-probabilities


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of token sampling; `temperature` 0 is greedy. Draws depend on the request's id and on `seed` alone.
    `top_k` 0 and `top_p` 1 keep every token. The repetition penalty divides the logits of tokens of prompt and answer;
    presence and frequency penalties are subtracted from those of the answer, once per token and once per occurrence."""

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
        """Whether earlier tokens change the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class Constraint(Protocol):
    """The tokens that may come next in an answer."""

    def allowed(self, token_ids: Sequence[int]) -> np.ndarray:
        """Bool [V], at least one of them true: the tokens that may follow the answer's `token_ids`. Tokens of the model
        beyond V are excluded. It is called once per token, each time with one more token id."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt: `token_ids` int32 [S] with a placeholder for every media token; `plans` describe the media. `frames`
    waits for their pixels, uint8 [n, 3, height, width] each, and raises ProblemError; it is called at the prefill.
    Requests with one `prefix_key` share their first `prefix` tokens and all media.

    `on_token` gets each token of the answer with its log-probability (nan without `logprobs`). `cancelled` is polled
    before the prefill and before each step. The result has the `top_logprobs` likeliest tokens of each step. With
    `candidates`, none of them empty, nothing is generated: each is scored as the answer. `draws` replaces the id in the
    seed of draws. With `tempered`, log-probabilities are of softmax(logits / temperature), the sampled distribution.
    """

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
        """Tokens of the prompt and of its longest possible answer."""
        return self.length + (max(map(len, self.candidates)) if self.candidates else self.sampling.max_tokens)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request. "stop": the last of `token_ids` is a stop id; "length": truncated at `max_tokens`;
    "cancelled": `token_ids` until then; "scored": `scores` has the log-probability of each candidate, the sum over its
    tokens; "error": `problems` say why. `logprobs` has the natural log-probability of each token and `top_logprobs` the
    likeliest tokens of each step, likeliest first, if requested: under the model's own distribution, before penalties,
    constraint, top-k and top-p, and before temperature unless `tempered`."""

    id: str
    finish_reason: Literal["stop", "length", "cancelled", "scored", "error"]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()
    scores: tuple[float, ...] = ()
    problems: tuple[Problem, ...] = ()
