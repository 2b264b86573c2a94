"""Rollouts: which questions a step asks, and groups of completions, drawn by the native generator from a copy of the
weights that are trained."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig

from vidqa.core.problem import Problem, ProblemError
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.distributed import World
from vidqa.engine.families import family_of
from vidqa.engine.generators._base import Request, Result, Sampling, Settings
from vidqa.engine.generators.native import NativeSession
from vidqa.engine.loading.load import empty_model
from vidqa.engine.model import DTYPES
from vidqa.engine.problems import ENGINE_ROLLOUT_DIFFERS
from vidqa.engine.rl.weights import RolloutWeights
from vidqa.engine.torch_private import keystr, tree_leaves_with_path
from vidqa.evaluation.rewards import Completion, Reward, Rewards
from vidqa.planning.rollouts import RolloutShape
from vidqa.planning.samples import Planner, Sample

ORDERS_KEPT = 64  # permutations that are remembered


class QuestionStream:
    """Which questions are asked: an endless sequence of their numbers, epoch after epoch, each in an order of its own.
    Its whole state is the number of questions taken. With `labels`, one a question, labels take turns: as many
    questions of each as of the others, whatever their share of the set; a rare label's questions come more often."""

    def __init__(self, size: int, labels: Sequence[str], policy: Any) -> None:
        """`policy` has the seed and whether to shuffle."""
        self.seed, self.shuffle = policy.dataloader_seed, policy.dataloader_shuffle
        self.classes = [np.flatnonzero([label == name for label in labels]) for name in sorted(set(labels))]
        self.classes = self.classes or [np.arange(size)]
        self._order = lru_cache(ORDERS_KEPT)(self._permutation)

    def at(self, position: int) -> int:
        """The number of the question at a position of the sequence, from 0."""
        draw, label = divmod(position, len(self.classes))
        epoch, place = divmod(draw, len(self.classes[label]))
        return int(self._order(label, epoch)[place])

    def take(self, position: int, count: int) -> list[int]:
        return [self.at(place) for place in range(position, position + count)]

    def _permutation(self, label: int, epoch: int) -> np.ndarray:
        order = self.classes[label].copy()
        if self.shuffle:
            np.random.Generator(np.random.PCG64([self.seed, label, epoch])).shuffle(order)
        return order


@dataclass(eq=False)
class Question:
    """A question of a step. `slot` is its position in the stream of questions, which no other has; `sample` is its
    prompt as it is asked here, `prompt_ids` int32 [S]. `frames` are uint8 [n, 3, h, w] of each medium once they are
    needed, and `problems` say why there are none."""

    slot: int
    sample: Sample
    prompt_ids: np.ndarray
    ticket: list[Any]
    frames: Sequence[np.ndarray] | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(eq=False)
class Drawn:
    """A completion as it was drawn: its tokens, the stop token included, and the log-probability of each, float32."""

    token_ids: tuple[int, ...]
    logprobs: np.ndarray
    completion: Completion
    reward: Reward

    @property
    def is_truncated(self) -> bool:
        return self.completion.finish_reason == "length"


@dataclass(eq=False)
class Group:
    """A question and its completions."""

    question: Question
    drawn: list[Drawn] = field(default_factory=list)

    @property
    def rewards(self) -> np.ndarray:
        """float64 [G]"""
        return np.array([drawn.reward.total for drawn in self.drawn])

    def part(self, name: str) -> np.ndarray:
        """One part of the rewards, float64 [G]."""
        return np.array([drawn.reward.parts[name] for drawn in self.drawn])


class RolloutModel:
    """The model that draws, on every rank, beside the sharded `trainer`."""

    def __init__(
        self, spec: Any, folder: Path, planner: Planner, trainer: Any, shape: RolloutShape, world: World
    ) -> None:
        dtype = DTYPES[spec.train.param_dtype]
        model = empty_model(folder, dtype, world.device)
        self.banned = banned_ids(folder, planner)
        self.weights = RolloutWeights(trainer, model)
        settings = Settings(folder, None, dtype, world.device, planner, shape.longest, batch_size=shape.rows)
        self.session = NativeSession(model, settings, banned=self.banned, pages=shape.pages)
        require_views(self.session.forward, model)

    def sync(self) -> None:
        """Copy the trainer's weights; every rank takes part. Raises ENGINE_ROLLOUT_DIFFERS."""
        self.weights.sync()


def banned_ids(folder: Path, planner: Planner) -> tuple[int, ...]:
    """Token ids that no completion of the model in `folder` has."""
    config = AutoConfig.from_pretrained(folder)
    return family_of(config).never_drawn(config, len(planner.chat.tokens.core.get_vocab()))


def require_views(forward: Any, model: nn.Module) -> None:
    """Every tensor that the generator's forward holds must lie in the memory of a parameter: a copy would keep old
    values. Raises ENGINE_ROLLOUT_DIFFERS."""
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for number, layer in enumerate(forward.layers):
        for path, value in tree_leaves_with_path(layer):
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in storages:
                message = f"{keystr(path)} is a copy of the model's weights"
                raise ENGINE_ROLLOUT_DIFFERS.error(f"layer {number}", message)


class Rollouts:
    """Asks questions of a `RolloutModel` and rewards the completions, in a thread beside the generator."""

    def __init__(self, model: RolloutModel, planner: Planner, source: FrameSource) -> None:
        self.model, self.planner, self.source = model, planner, source
        self.stop_ids = tuple(sorted(planner.chat.eos_ids))
        self.waited = 0.0  # seconds in which the generator waited for frames
        self.reward_s = 0.0  # seconds of rewards that nothing else hid

    def question(self, slot: int, sample: Sample) -> Question:
        """Decoding of its media begins."""
        return Question(slot, sample, self.planner.encode(sample).token_ids, self.source.request([sample]))

    def draw(
        self, questions: Sequence[Question], rewards: Rewards, sampling: Sampling, size: int, name: str
    ) -> list[Group]:
        """`size` completions of each question, in the order of the questions. Draws are named by `name`, slot and
        number of the completion. A question whose media cannot be decoded has no completions, but problems. Raises the
        problems of rewards."""
        groups = {question.slot: Group(question) for question in questions}
        requests = self._requests(questions, sampling, size, name)
        pending: dict[tuple[int, int], Future[Drawn]] = {}
        with ThreadPoolExecutor(1, "rewards") as rewarding:
            for results in self.model.session.generate(requests):
                for result in results:
                    slot, number = map(int, result.id.split("."))
                    question = groups[slot].question
                    if result.problems:
                        question.problems = result.problems
                    else:
                        pending[slot, number] = rewarding.submit(self.rewarded, question, result, rewards)
            started = time.perf_counter()
            try:
                for future in pending.values():  # in the order in which they are rewarded
                    future.result()
            except ProblemError:
                rewarding.shutdown(wait=False, cancel_futures=True)  # each of the others may take as long to fail
                raise
            self.reward_s += time.perf_counter() - started
        for (slot, _), future in sorted(pending.items()):
            groups[slot].drawn.append(future.result())
        return list(groups.values())

    def _requests(self, questions: Iterable[Question], sampling: Sampling, size: int, name: str) -> Iterable[Request]:
        for question in sorted(questions, key=lambda question: -question.sample.length):
            # A group has all but the prompt's last token in common: what is chosen behind that one differs.
            prefix, key = len(question.prompt_ids) - 1, str(question.slot).encode()
            if size == 1:
                prefix, key = question.sample.prefix, question.sample.prefix_key
            for number in range(size):
                yield Request(
                    id=f"{question.slot}.{number}",
                    token_ids=question.prompt_ids,
                    sampling=sampling,
                    stop_ids=self.stop_ids,
                    plans=question.sample.plans,
                    frames=partial(self.frames, question),
                    logprobs=True,
                    tempered=sampling.temperature > 0,
                    prefix=prefix,
                    prefix_key=key,
                    draws=f"{name} {question.slot} {number}",
                )

    def frames(self, question: Question) -> Sequence[np.ndarray]:
        """Its media decoded, each uint8 [n, 3, h, w]. Raises the problems of those that cannot be."""
        if question.frames is None:
            started = time.perf_counter()
            (frames,), problems = self.source.collect(question.ticket)
            self.waited += time.perf_counter() - started
            question.ticket, question.frames, question.problems = [], frames, tuple(problems)
        if question.problems:
            raise ProblemError(question.problems)
        return question.frames

    def rewarded(self, question: Question, result: Result, rewards: Rewards) -> Drawn:
        """A completion with its text and its reward. Raises the problems of rewards."""
        ids = result.token_ids[:-1] if result.finish_reason == "stop" else result.token_ids
        text = self.planner.chat.decode(ids).strip()
        completion = Completion(question.sample.record, text, result.token_ids, result.finish_reason)
        logprobs = np.array(result.logprobs, np.float32)
        return Drawn(result.token_ids, logprobs, completion, rewards(completion))
