"""What every generator does with prompts: one list of scenarios, run against whatever the fixture `generator` brings.

    from generator_conformance import *    # in a test module that has a fixture `generator`

Each prompt alone in stock transformers, in float32, is the oracle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_world import tiny_data, tiny_model
from transformers import Qwen3VLForConditionalGeneration

from vidqa.contract.problem import ProblemError
from vidqa.dataset import load_records
from vidqa.engine.batch.resize import resize_frames
from vidqa.engine.generators._base import Generator, Request, Result, Sampling, Settings
from vidqa.engine.model.stock_inputs import stock_inputs
from vidqa.planning.samples import Planner, Prompting
from vidqa.video import decode_frames, decode_image
from vidqa.video.problems import VIDEO_UNREADABLE

CPU = torch.device("cpu")
GREEDY = Sampling(max_tokens=8)
DRAWN = Sampling(max_tokens=8, temperature=1.0, seed=3)
CLIPS = ("videos/0.mp4", "videos/1.mp4", "videos/2.mp4")
Answering = Callable[..., dict[str, Result]]


@dataclass(frozen=True)
class World:
    """A model and prompts for it: about text, an image, a video, and three videos at once."""

    folder: Path
    model: Any
    planner: Planner
    prompts: tuple[Request, ...]

    def settings(self, **changes: Any) -> Settings:
        opened = Settings(self.folder, None, torch.float32, CPU, self.planner, longest=4096, batch_size=3)
        return replace(opened, **changes)

    def forward(self, request: Request, answer: Sequence[int] = ()) -> dict[str, torch.Tensor]:
        """What stock transformers takes for a prompt and its answer."""
        token_ids = np.concatenate([request.token_ids, np.array(answer, np.int32)])
        return stock_inputs(self.planner, [token_ids], [request.plans], [request.frames()], CPU)

    @torch.no_grad()
    def expected(self, request: Request) -> list[int]:
        """The answer to a prompt alone, by stock `generate`."""
        sampling, stop_ids = request.sampling, list(request.stop_ids)
        settings = {"max_new_tokens": sampling.max_tokens, "eos_token_id": stop_ids, "do_sample": False}
        output = self.model.generate(**self.forward(request), **settings, pad_token_id=self.planner.chat.pad_id)
        return output[0, len(request.token_ids) :].tolist()

    @torch.no_grad()
    def logprobs(self, request: Request, answer: Sequence[int]) -> list[float]:
        """Of an answer's tokens, by one stock forward over prompt and answer."""
        logits = self.model(**self.forward(request, answer)).logits[0, len(request.token_ids) - 1 : -1]
        return logits.float().log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("generators")
    model, root = tiny_model(folder), tiny_data(folder, clips=3, images=1, texts=1)
    records = json.loads((root / "annotations.json").read_text())
    turns = [{"from": "human", "value": "<video>\n" * 3 + "Which is longest?"}, {"from": "gpt", "value": "C"}]
    records.append({"id": "three", "video": list(CLIPS), "conversations": turns})
    (root / "annotations.json").write_text(json.dumps(records))
    vision = SimpleNamespace(fps=None, nframes=5, total_pixels=None)
    planner = Planner(model, vision, Prompting("You are a helpful assistant.", for_generation=True))
    samples, problems = planner.plan(load_records(root / "annotations.json", root))
    assert not problems
    stock = Qwen3VLForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
    return World(model, stock, planner, tuple(_prompt(planner, sample) for sample in samples))


def _prompt(planner: Planner, sample: Any) -> Request:
    frames = [_frames(ref, plan) for ref, plan in zip(sample.record.media, sample.plans, strict=True)]
    token_ids, stop_ids = planner.encode(sample).token_ids, planner.chat.eos_ids
    shared = {"prefix": sample.prefix, "prefix_key": sample.prefix_key}
    return Request(sample.record.id, token_ids, GREEDY, stop_ids, sample.plans, lambda: frames, logprobs=True, **shared)


def _frames(ref: Any, plan: Any) -> np.ndarray:
    whole = decode_image(ref.path) if ref.kind == "image" else decode_frames(ref.path, None, plan.indices)
    return resize_frames(whole, plan.height, plan.width)


@pytest.fixture
def answers(generator: Generator, world: World) -> Answering:
    """Results by id of requests to the generator, opened with other settings where they are given."""

    def answered(requests: Iterable[Request], **changes: Any) -> dict[str, Result]:
        requests = list(requests)
        with closing(generator.open(world.settings(**changes))) as session:
            results = [result for some in session.generate(iter(requests)) for result in some]
        assert sorted(result.id for result in results) == sorted(request.id for request in requests)
        return {result.id: result for result in results}

    return answered


def changed(requests: Iterable[Request], **changes: Any) -> list[Request]:
    return [replace(request, **changes) for request in requests]


def test_answers_are_those_of_stock_transformers_to_each_prompt_alone(world: World, answers: Answering) -> None:
    kinds = {tuple(plan.kind for plan in request.plans) for request in world.prompts}
    assert kinds == {(), ("image",), ("video",), ("video",) * 3}
    found = answers(world.prompts)
    for request in world.prompts:
        row, result = world.expected(request), found[request.id]
        assert list(result.token_ids) == row, request.id
        assert result.finish_reason == ("stop" if row[-1] in request.stop_ids else "length")
        assert result.problems == ()


def test_logprobs_are_those_of_a_stock_forward(world: World, answers: Answering) -> None:
    for sampling in (GREEDY, replace(DRAWN, temperature=0.7, top_p=0.9, top_k=50)):
        requests = changed(world.prompts, sampling=sampling)
        found = answers(requests)
        for request in requests:
            result = found[request.id]
            assert result.logprobs == pytest.approx(world.logprobs(request, result.token_ids), abs=1e-4)
    silent = answers(changed(world.prompts, logprobs=False)).values()
    assert all(result.logprobs == () and result.token_ids for result in silent)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_results_do_not_depend_on_batches_or_order(world: World, answers: Answering, sampling: Sampling) -> None:
    requests = changed(world.prompts, sampling=sampling)
    found = answers(requests, batch_size=1)
    for others in (answers(requests, batch_size=4), answers(requests[::-1], batch_size=3), answers(requests[4:5])):
        for name, result in others.items():
            assert (result.token_ids, result.finish_reason) == (found[name].token_ids, found[name].finish_reason)
            assert result.logprobs == pytest.approx(found[name].logprobs, abs=1e-4)


def test_draws_are_those_of_the_seed_and_the_id(world: World, answers: Answering) -> None:
    first = replace(world.prompts[0], sampling=replace(DRAWN, max_tokens=24))
    twins = [replace(first, id=str(number)) for number in range(6)]
    found = answers(twins, batch_size=2)
    assert len({result.token_ids for result in found.values()}) > 1
    assert {name: result.token_ids for name, result in answers(twins[::-1], batch_size=6).items()} == {
        name: result.token_ids for name, result in found.items()
    }
    other = answers(changed(twins, sampling=replace(first.sampling, seed=4)))
    assert {name: result.token_ids for name, result in other.items()} != {
        name: result.token_ids for name, result in found.items()
    }


def test_draws_from_one_token_are_greedy(world: World, answers: Answering) -> None:
    found = answers(world.prompts)
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
        drawn = answers(changed(world.prompts, sampling=replace(DRAWN, **narrow)))
        assert {name: r.token_ids for name, r in drawn.items()} == {name: r.token_ids for name, r in found.items()}


def test_an_answer_ends_at_a_stop_id_and_holds_it(world: World, answers: Answering) -> None:
    request = world.prompts[0]
    whole = world.expected(request)
    stop = whole[3]
    other = replace(world.prompts[2], sampling=request.sampling)
    found = answers([replace(request, stop_ids=(stop, *request.stop_ids)), other])
    end = whole.index(stop) + 1
    assert found[request.id].finish_reason == "stop" and list(found[request.id].token_ids) == whole[:end]
    assert len(found[request.id].logprobs) == end
    assert list(found[other.id].token_ids) == world.expected(other)


def test_one_token_is_cut_off_after_it(world: World, answers: Answering) -> None:
    requests = changed(world.prompts, sampling=Sampling(max_tokens=1))
    for name, result in answers(requests).items():
        assert len(result.token_ids) == len(result.logprobs) == 1, name
        assert result.finish_reason == "length"


def test_a_prompt_that_is_too_long_is_an_error_and_the_others_go_on(world: World, answers: Answering) -> None:
    longest = max(map(len, (request.token_ids for request in world.prompts)))
    found = answers(world.prompts, longest=longest + GREEDY.max_tokens - 1)
    (long,) = [request.id for request in world.prompts if len(request.token_ids) == longest]
    assert (found[long].finish_reason, found[long].token_ids) == ("error", ())
    assert [problem.code for problem in found[long].problems] == ["SAMPLE_TOO_LONG"]
    assert str(longest) in found[long].problems[0].message and long in found[long].problems[0].where
    assert_others_answered(world, found, long)


def test_frames_that_cannot_be_had_are_an_error_and_the_others_go_on(world: World, answers: Answering) -> None:
    def broken() -> list[np.ndarray]:
        raise ProblemError([VIDEO_UNREADABLE.at("clip.mp4", "no picture in it")])

    first, *others = world.prompts
    found = answers([replace(first, frames=broken), *others])
    assert (found[first.id].finish_reason, found[first.id].token_ids) == ("error", ())
    assert [problem.where for problem in found[first.id].problems] == ["clip.mp4"]
    assert_others_answered(world, found, first.id)


def assert_others_answered(world: World, found: dict[str, Result], failed: str) -> None:
    for request in world.prompts:
        if request.id != failed:
            assert list(found[request.id].token_ids) == world.expected(request)


def test_requests_are_taken_as_they_can_be_worked_on(generator: Generator, world: World) -> None:
    """A long list is never held, and what is finished comes before the last prompt is looked at."""
    taken: list[str] = []

    def coming() -> Iterable[Request]:
        for number in range(40):
            taken.append(str(number))
            yield replace(world.prompts[0], id=str(number))

    with closing(generator.open(world.settings(batch_size=2))) as session:
        results = session.generate(coming())
        assert next(results) and len(taken) < 40
        assert sum(len(some) for some in results) >= 36
