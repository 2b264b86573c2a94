"""The interface of generators: planned prompts in, token ids with log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from vidqa.core.problem import ProblemError
from vidqa.planning.problems import SAMPLE_TOO_LONG
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import Planner


@dataclass(frozen=True)
class Settings:
    """The model to open: in `folder`, or the adapter in `folder` on the model in `base`. `planner` planned the prompts;
    prompt and answer have at most `longest` tokens; `batch_size` prompts may be answered at a time."""

    folder: Path
    base: Path | None
    dtype: torch.dtype
    device: torch.device
    planner: Planner
    longest: int
    batch_size: int


class Session(Protocol):
    """A loaded model that answers requests."""

    def generate(self, requests: Iterable[Request | None]) -> Iterator[list[Result]]:
        """Yield results as they finish, in any order. Requests are taken when there is capacity. None among them means
        "none now": the session continues with its running requests and asks again later; without any it yields an empty
        list, so that the caller can wait. A result depends on its request alone; a failed one affects no others."""

    def close(self) -> None:
        """Free the model."""


Generator = Callable[[Settings], Session]  # loads the model


def ready(request: Request, longest: int) -> Sequence[np.ndarray] | Result:
    """The frames of a request, or its result if it is cancelled, too long or without frames."""
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
