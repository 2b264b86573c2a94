"""Rollouts: the questions of a step, groups of completions, drawn by the native generator from a copy of the trained
weights, and their record in the run's folder (`core.run_folder`)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vidqa.core.files import replacing
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.run_folder import rank_of, read_rollouts, rollout_file, rollout_files
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.prefetch import decode_ahead
from vidqa.engine.rl.rollout_model import RolloutModel
from vidqa.evaluation.rewards import Completion, Reward, Rewards
from vidqa.planning.requests import Request, Result, Sampling
from vidqa.planning.samples import Planner, Sample

ORDERS_KEPT = 64  # permutations that are cached
CODEC = pa.Codec("zstd")
SHOWN = 4  # frames of a question shown on its page, over all of its media


class QuestionStream:
    """The order of questions: an endless sequence of their numbers, epoch after epoch, each in a different order. Its
    only state is the number of questions taken. With `labels`, one per question, labels take turns: all labels are
    equally frequent, whatever their share of the set; questions of a rare label are repeated more often."""

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
    """A question of a step. `slot` is its unique position in the stream of questions; `sample` is its prompt as asked
    here, `prompt_ids` int32 [S]. `frames` are uint8 [n, 3, h, w] of each medium once they are needed, and `problems`
    the reasons if they are missing."""

    slot: int
    sample: Sample
    prompt_ids: np.ndarray
    frames: Sequence[np.ndarray] | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(eq=False)
class Drawn:
    """A drawn completion: its tokens, including the stop token, and the log-probability of each, float32."""

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
        """The rewards of the completions, float64 [G]."""
        return np.array([drawn.reward.total for drawn in self.drawn])

    def part(self, name: str) -> np.ndarray:
        """One part of the rewards, float64 [G]."""
        return np.array([drawn.reward.parts[name] for drawn in self.drawn])


def advantages(rewards: np.ndarray, *, divided: bool) -> np.ndarray:
    """The advantages of the rewards of one group, float64 [G]: r - mean, `divided` by the population's deviation +
    1e-6. They are 0 if largest and smallest reward are equal: the deviation would be rounding error alone."""
    if rewards.max() == rewards.min():
        return np.zeros_like(rewards)
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + 1e-6) if divided else centred


Decoding = Iterator[tuple[Question, list[Any]]]  # questions with the tickets of their media


class Rollouts:
    """Draws completions of questions with a `RolloutModel`, and rewards them in a thread beside the generator."""

    def __init__(self, model: RolloutModel, planner: Planner, source: FrameSource) -> None:
        self.model, self.planner, self.source = model, planner, source
        self.stop_ids = tuple(sorted(planner.chat.eos_ids))
        self.waited_s = 0.0  # seconds that the generator waited for frames
        self.reward_s = 0.0  # seconds of rewards that did not overlap with generation

    def question(self, slot: int, sample: Sample) -> Question:
        return Question(slot, sample, self.planner.encode(sample).token_ids)

    def decoding(self, questions: Sequence[Question]) -> Decoding:
        """The questions with the tickets of their media, which are decoded ahead from now on."""
        decoded = decode_ahead([question.sample for question in questions], self.source)
        return ((question, ticket) for question, (_, ticket) in zip(questions, decoded, strict=True))

    def draw(
        self,
        questions: Decoding,
        rewards: Rewards,
        sampling: Sampling,
        size: int,
        name: str,
        *,
        keeps_frames: bool = True,
    ) -> list[Group]:
        """Draw `size` completions of each question, in the order of the questions. Random keys of draws are `name`,
        slot and number of the completion. A question whose media cannot be decoded has no completions, but problems.
        Without `keeps_frames` only frames of active questions are held. Raises the problems of rewards."""
        groups, drawn = dict[int, Group](), Counter[int]()
        requests = self._requests(questions, groups, sampling, size, name)
        pending: dict[tuple[int, int], Future[Drawn]] = {}
        with ThreadPoolExecutor(1, "rewards") as rewarding:
            for results in self.model.session.generate(requests):
                for result in results:
                    slot, number = map(int, result.id.split("."))
                    question = groups[slot].question
                    drawn[slot] += 1
                    if drawn[slot] == size and not keeps_frames:
                        question.frames = None
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

    def _requests(
        self, questions: Decoding, groups: dict[int, Group], sampling: Sampling, size: int, name: str
    ) -> Iterator[Request]:
        for question, ticket in questions:
            groups[question.slot] = Group(question)
            # A group shares all but the prompt's last token: the tokens chosen after that one differ.
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
                    frames=partial(self.frames, question, ticket),
                    logprobs=True,
                    tempered=sampling.temperature > 0,
                    prefix=prefix,
                    prefix_key=key,
                    draws=f"{name} {question.slot} {number}",
                )

    def frames(self, question: Question, ticket: list[Any]) -> Sequence[np.ndarray]:
        """The decoded media of a question, each uint8 [n, 3, h, w]. Raises the problems of media that do not decode."""
        if question.frames is None:
            started = time.perf_counter()
            (frames,), problems = self.source.collect(ticket)
            self.waited_s += time.perf_counter() - started
            ticket.clear()  # so that it does not keep the frames
            question.frames, question.problems = frames, tuple(problems)
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


class RolloutRecord:
    """Appends the groups of each step. A resumed run truncates the lines after its checkpoint."""

    def __init__(self, folder: Path, rank: int, step: int, ranks: int) -> None:
        """Drop the lines after the first `step` steps, also from files of ranks that no longer exist: each rank
        truncates its own file and every `ranks`th one after it."""
        self.path = rollout_file(folder, rank)
        for path in rollout_files(folder):
            if rank_of(path) % ranks == rank:
                cut_off(path, step)

    def write(self, step: int, groups: Sequence[Group], dropped: Sequence[Group], *, divided: bool) -> None:
        """Append step number `step` (from 1): the groups that it learned from, and those that DAPO dropped."""
        lines = []
        for place, group in enumerate([*groups, *dropped]):
            shares = advantages(group.rewards, divided=divided)
            for number, (drawn, advantage) in enumerate(zip(group.drawn, shares, strict=True)):
                lines.append(
                    {
                        "step": step,
                        "slot": group.question.slot,
                        "id": group.question.sample.record.id,
                        "question": group.question.sample.record.question,
                        "answer": group.question.sample.record.answer,
                        "media": _media(group.question.sample),
                        "completion": number,
                        "token_ids": list(drawn.token_ids),
                        "logprobs": [float(str(value)) for value in drawn.logprobs],
                        "finish_reason": drawn.completion.finish_reason,
                        "text": drawn.completion.text,
                        "reward": drawn.reward.total,
                        "parts": dict(drawn.reward.parts),
                        "advantage": float(advantage),
                        "dropped": place >= len(groups),
                    }
                )
        if lines:
            with self.path.open("ab") as file:
                file.write(frame_of(lines))


def frame_of(lines: Sequence[dict[str, Any]]) -> bytes:
    """The compressed frame of a step."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    return CODEC.compress(text, asbytes=True)


def cut_off(path: Path, step: int) -> None:
    """Remove later steps than `step` from a file: the file is then byte by byte the one after that step."""
    steps = groupby((line for line in read_rollouts(path) if line["step"] <= step), key=lambda line: line["step"])
    with replacing(path) as shortened, shortened.open("wb") as file:
        file.writelines(frame_of(list(lines)) for _, lines in steps)


def _media(sample: Sample) -> list[dict[str, Any]]:
    """The files of a question's media with a few of the frames that the model saw of each, evenly spread."""
    count = max(1, SHOWN // max(1, len(sample.plans)))
    return [
        {
            "path": ref.path,
            "member": ref.member,
            "frames": [plan.indices[i * len(plan.indices) // count] for i in range(min(count, len(plan.indices)))],
        }
        for ref, plan in list(zip(sample.record.media, sample.plans, strict=True))[:SHOWN]
    ]
