"""What generators are tested with: a tiny model, prompts of all media, and what stock transformers says to them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from clips import decode_frames
from tiny_world import tiny_data, tiny_model
from transformers import LogitsProcessor, LogitsProcessorList

from vidqa.data import load_records
from vidqa.engine.data.collate import stock_inputs
from vidqa.engine.data.pixels import resize_frames
from vidqa.engine.families import FAMILIES, torch_half
from vidqa.engine.generators._base import Generator, Settings
from vidqa.planning.requests import Request, Result, Sampling
from vidqa.planning.samples import Planner, Prompting
from vidqa.video.image import decode_image

CPU = torch.device("cpu")
GREEDY = Sampling(max_tokens=8)
DRAWN = Sampling(max_tokens=8, temperature=1.0, seed=3)
CLIPS = ("videos/0.mp4", "videos/1.mp4", "videos/2.mp4")
Answering = Callable[..., dict[str, Result]]


class Penalties(LogitsProcessor):
    """Presence and frequency penalties, counted anew at each step from the tokens behind the prompt."""

    def __init__(self, sampling: Sampling, prompt: int) -> None:
        self.sampling, self.prompt = sampling, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token, count in Counter(input_ids[0, self.prompt :].tolist()).items():
            scores[0, token] -= self.sampling.presence_penalty + self.sampling.frequency_penalty * count
        return scores


def inputs_of(request: Request) -> tuple[Any, ...]:
    return request.token_ids.tobytes(), tuple(request.plans), request.frames


@dataclass(frozen=True)
class World:
    """A model and prompts for it: about text, an image, a video, and three videos at once."""

    folder: Path
    model: Any
    planner: Planner
    prompts: tuple[Request, ...]
    by_stock: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # what stock transformers has answered before

    def settings(self, **changes: Any) -> Settings:
        opened = Settings(self.folder, None, torch.float32, CPU, self.planner, longest=4096, batch_size=3)
        return replace(opened, **changes)

    def forward(self, request: Request, answer: Sequence[int] = ()) -> dict[str, torch.Tensor]:
        """What stock transformers takes for a prompt and its answer."""
        token_ids = np.concatenate([request.token_ids, np.array(answer, np.int32)])
        return stock_inputs(self.planner, [token_ids], [request.plans], [request.frames()], CPU)

    def expected(self, request: Request) -> list[int]:
        """The answer to a prompt alone, by stock `generate`."""
        key = (*inputs_of(request), request.sampling, request.stop_ids)
        if key not in self.by_stock:
            self.by_stock[key] = self._generated(request)
        return self.by_stock[key]

    @torch.no_grad()
    def _generated(self, request: Request) -> list[int]:
        sampling, stop_ids = request.sampling, list(request.stop_ids)
        settings = {"max_new_tokens": sampling.max_tokens, "eos_token_id": stop_ids, "do_sample": False}
        settings["repetition_penalty"] = sampling.repetition_penalty
        settings["logits_processor"] = LogitsProcessorList([Penalties(sampling, len(request.token_ids))])
        output = self.model.generate(**self.forward(request), **settings, pad_token_id=self.planner.chat.pad_id)
        return output[0, len(request.token_ids) :].tolist()

    @torch.no_grad()
    def distributions(self, request: Request, answer: Sequence[int]) -> torch.Tensor:
        """Log-probabilities [S, V] at the places of an answer's tokens, by one stock forward over prompt and answer."""
        key = (*inputs_of(request), tuple(answer))
        if key not in self.by_stock:
            logits = self.model(**self.forward(request, answer)).logits[0, len(request.token_ids) - 1 : -1]
            self.by_stock[key] = logits.float().log_softmax(-1)
        return self.by_stock[key]

    def logprobs(self, request: Request, answer: Sequence[int]) -> list[float]:
        """Of an answer's tokens."""
        found = self.distributions(request, answer)
        return found.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small is ten times slower where several threads wait for each other beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def family() -> str:
    """The family of the model; modules override it."""
    return FAMILIES[0].tables.name


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, family: str) -> World:
    folder = tmp_path_factory.mktemp("generators")
    model, root = tiny_model(folder, family=family), tiny_data(folder, clips=3, images=1, texts=1)
    records = json.loads((root / "annotations.json").read_text())
    turns = [{"from": "human", "value": "<video>\n" * 3 + "Which is longest?"}, {"from": "gpt", "value": "C"}]
    records.append({"id": "three", "video": list(CLIPS), "conversations": turns})
    (root / "annotations.json").write_text(json.dumps(records))
    vision = SimpleNamespace(fps=None, nframes=5, total_pixels=None)
    planner = Planner(model, vision, Prompting("You are a helpful assistant.", for_generation=True))
    samples, problems = planner.plan(load_records(root / "annotations.json", root))
    assert not problems
    stock = torch_half(planner.family).model_class.from_pretrained(model, dtype=torch.float32).eval()
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
        with closing(generator(world.settings(**changes))) as session:
            results = [result for some in session.generate(iter(requests)) for result in some]
        assert sorted(result.id for result in results) == sorted(request.id for request in requests)
        return {result.id: result for result in results}

    return answered


def changed(requests: Iterable[Request], **changes: Any) -> list[Request]:
    return [replace(request, **changes) for request in requests]
