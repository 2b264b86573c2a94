"""A model is given the same prompt ids and the same pixels by everything that reads videos.

Each of READERS says what it gives for every awkward video; all of them say what training does. Who reads videos adds
itself with one row.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from awkward import AWKWARD, write_awkward
from tiny_world import QUESTIONS, tiny_model, tiny_spec

from vidqa.engine.answering.prompts import Prompts
from vidqa.engine.data.collate import Collator, stock_inputs
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.prefetch import Prefetcher
from vidqa.engine.engine_thread import EngineThread
from vidqa.engine.generators._base import Session, Settings
from vidqa.engine.generators.hf import open_transformers
from vidqa.engine.generators.native import PromptCollator
from vidqa.families import family_of
from vidqa.planning.plan import load_sets
from vidqa.planning.requests import Request, Result, Sampling
from vidqa.planning.samples import evaluation_planner, training_planner
from vidqa.serving._base import Limits
from vidqa.serving.handler import RequestHandler
from vidqa.serving.media import Hosts, MediaAccess, MediaStore
from vidqa.serving.schema import ChatRequest
from vidqa.spec import Layer, load, resolve

CPU = torch.device("cpu")
SYSTEM = "You look closely."
SAMPLING = {"fps": 4.0, "total_pixels": 12 * 64 * 64}  # a budget that long videos exceed


class Given(NamedTuple):
    """What a model is given for a video: the ids of the prompt, and sha256 of the patches, float32 [P, C]."""

    token_ids: tuple[int, ...]
    patches: str


@dataclass(frozen=True)
class World:
    """A model, and one record for each of AWKWARD."""

    folder: Path
    model: Path
    root: Path

    def keys(self, action: str) -> dict[str, Any]:
        """Of a spec of an action that answers."""
        asked = "questions.json" if action == "inference" else "annotations.json"
        return {
            "dataset.annotation_path": str(self.root / asked),
            "dataset.media_dir": str(self.root),
            "dataset.system_prompt": SYSTEM,
            "model.model_name": str(self.model),
            "engine.frame_cache_dir": str(self.folder / f"cache-{action}"),
            **{f"vision.{key}": value for key, value in SAMPLING.items()},
        }


def sha256(patches: torch.Tensor) -> str:
    return hashlib.sha256(patches.contiguous().numpy().tobytes()).hexdigest()


def trained(world: World) -> dict[str, Given]:
    """What the collator gives to training, up to where the answer begins; frames decoded afresh."""
    vision = {"custom.vision.nframes": None, **{f"custom.vision.{k}": v for k, v in SAMPLING.items()}}
    spec = load(tiny_spec(world.folder, world.model, world.root, {"custom.system_prompt": SYSTEM, **vision}), "train")
    planner = training_planner(spec, world.model)
    samples, problems = planner.plan(load_sets(spec)["train"])
    assert not problems
    collator = Collator(planner, family_of(world.model).sizes_of(world.model).vision, "cpu")
    found = {}
    with closing(FrameSource(2, 60.0, None)) as source:
        packs = [[number] for number in range(len(samples))]
        with Prefetcher(packs, samples, source, collator, CPU) as batches:
            for loaded, sample in zip(batches, samples, strict=True):
                assert not loaded.problems
                answer = int(loaded.batch.predict_at_N[0]) + 1
                ids = loaded.batch.input_ids_T[:answer].tolist()
                found[sample.record.id] = Given(tuple(ids), sha256(loaded.batch.patches_PC))
    return found


def requested(world: World, action: str) -> Iterable[tuple[Any, Request]]:
    """What generators are asked by a spec of `action`, and the planner; frames by way of the frame cache."""
    spec = resolve(action, [Layer("test", world.keys(action))]).spec
    planner = evaluation_planner(spec, world.model)
    (records,) = load_sets(spec).values()
    samples, problems = planner.plan(records)
    assert not problems
    with open_frames(spec.engine, 2) as source:
        for request in Prompts(planner, source, Sampling(4)).requests(samples):
            yield planner, request


def by_the_reference(world: World, action: str = "evaluate") -> dict[str, Given]:
    """What the transformers generator gives to the stock model."""
    found = {}
    for planner, request in requested(world, action):
        found[request.id] = given_to_stock(planner, request, request.frames())
    return found


def given_to_stock(planner: Any, request: Request, frames: Any) -> Given:
    inputs = stock_inputs(planner, [request.token_ids], [request.plans], [frames], CPU)
    return Given(tuple(inputs["input_ids"][0].tolist()), sha256(inputs["pixel_values_videos"]))


def by_the_native(world: World, action: str = "evaluate") -> dict[str, Given]:
    """What the native generator gives to our forward."""
    found = {}
    sizes = family_of(world.model).sizes_of(world.model).vision
    for planner, request in requested(world, action):
        batch: Any = PromptCollator(planner, sizes, "cpu", share=True)([0], [request], [request.frames()])
        ids = batch.input_ids_T[: request.length].tolist()
        found[request.id] = Given(tuple(ids), sha256(batch.patches_PC))
    return found


@dataclass
class Hearing:
    """A session that keeps what another one is asked."""

    session: Session
    planner: Any
    heard: list[Given]

    def generate(self, requests: Iterable[Request | None]) -> Iterator[list[Result]]:
        return self.session.generate(request and self._hear(request) for request in requests)

    def _hear(self, request: Request) -> Request:
        frames = request.frames()
        self.heard.append(given_to_stock(self.planner, request, frames))
        return replace(request, frames=lambda: frames)

    def close(self) -> None:
        self.session.close()


def served(world: World) -> dict[str, Given]:
    """What the server's generator is asked by requests that name the files."""
    spec = resolve("inference", [Layer("test", world.keys("inference"))]).spec
    planner, limits, heard = evaluation_planner(spec, world.model), Limits(), []
    settings = Settings(world.model, None, torch.float32, CPU, planner, longest=4096, batch_size=1)

    async def ask(handler: RequestHandler, path: Path) -> None:
        content = [
            {"type": "video_url", "video_url": {"url": path.resolve().as_uri()}},
            {"type": "text", "text": QUESTIONS[0][0]},
        ]
        messages = [{"role": "user", "content": content}]
        request = ChatRequest.model_validate({"model": "tiny", "messages": messages, "max_tokens": 1})
        with ExitStack() as held:
            answers = await handler.begin(request, await handler.plan(request, held))
            assert [piece async for piece in answers.pieces()]

    async def generate_all(handler: RequestHandler) -> None:
        for name in AWKWARD:
            await ask(handler, world.root / name)

    with closing(FrameSource(2, 60.0, None)) as source:
        opened = partial(Hearing, open_transformers(settings), planner, heard)
        with closing(EngineThread(opened, planner, source, longest=4096, batch_size=1)) as backend:
            backend.start()
            access = MediaAccess((os.path.realpath(world.root),), Hosts.parse([]), MediaStore(world.folder), limits)
            asyncio.run(generate_all(RequestHandler(backend, access, Sampling(1))))
    return dict(zip(AWKWARD, heard, strict=True))


READERS: dict[str, Callable[[World], dict[str, Given]]] = {
    "evaluate": by_the_reference,
    "evaluate, native": by_the_native,
    "inference": partial(by_the_reference, action="inference"),
    "serve": served,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("same")
    root = folder / "data"
    question, answer = QUESTIONS[0]
    turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
    records = [{"id": name, "video": path.name, "conversations": turns} for name, path in write_awkward(root).items()]
    (root / "annotations.json").write_text(json.dumps(records), encoding="utf-8")
    asked = [{**record, "conversations": turns[:1]} for record in records]
    (root / "questions.json").write_text(json.dumps(asked), encoding="utf-8")
    made = World(folder, tiny_model(folder), root)
    return SimpleNamespace(world=made, trained=trained(made))


def test_they_are_all_different_videos_that_training_reads(world: SimpleNamespace) -> None:
    assert len(AWKWARD) >= 50 and list(world.trained) == list(AWKWARD)
    assert len({given.patches for given in world.trained.values()}) > len(world.trained) / 2


@pytest.mark.parametrize("reader", list(READERS))
def test_the_model_is_given_what_it_was_trained_with(world: SimpleNamespace, reader: str) -> None:
    given = READERS[reader](world.world)
    assert set(given) == set(world.trained)
    unlike = {
        name: sorted(field for field in Given._fields if getattr(given[name], field) != getattr(of, field))
        for name, of in world.trained.items()
        if given[name] != of
    }
    assert unlike == {}
