"""The conformance suite for every generator, and what is special about two of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch
from generator_conformance import *  # noqa: F403
from generator_world import GREEDY, World, changed

from vidqa.engine.generators import GENERATORS, NATIVE
from vidqa.engine.generators._base import Generator
from vidqa.engine.generators.choosing import SeededDraws


@pytest.fixture(params=["transformers", "native"])
def generator(request: pytest.FixtureRequest) -> Generator:
    return GENERATORS[request.param]


def test_draws_follow_the_models_distribution() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -30.0]]).expand(4000, -1)
    seeds = [(0, str(number)) for number in range(4000)]
    drawn = SeededDraws(seeds, torch.device("cpu"))(torch.zeros(4000, 1), scores).argmax(-1)
    share = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(share, scores[0].softmax(-1), atol=0.03, rtol=0)


def test_a_step_without_rows_leaves_those_that_are_there_alone(world: World) -> None:
    """Such a step stands before the capture of a graph, while prompts are being answered."""
    short, *others = changed(world.prompts[:4], sampling=replace(GREEDY, max_tokens=12), stop_ids=())
    short = replace(short, sampling=replace(GREEDY, max_tokens=2))
    with closing(NATIVE.open(world.settings(batch_size=4))) as session:
        results = session.generate(iter([short, *others]))
        found = next(results)
        decoder = session.decoder
        assert len(decoder.rows) == 3
        with decoder.nobody():
            decoder.run(4)
        found += [result for some in results for result in some]
    assert {result.id: list(result.token_ids) for result in found} == {
        request.id: world.expected(request) for request in (short, *others)
    }
    assert not decoder.rows and len(session.pages.free) == len(session.pages.users) - 1


def test_a_step_takes_a_graph_that_is_there_before_another_is_captured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(NATIVE.open(world.settings(batch_size=70))) as session:
        decoder, captured = session.decoder, []

        def capture(size: int) -> None:
            captured.append(size)
            decoder.graphs[size] = size

        monkeypatch.setattr(decoder, "capture", capture)
        taken = [decoder.graph_for(count) for count in (5, 40, 70, 20, 9, 7, 3, 1, 2)]
    assert captured == [16, 64, 70, 1]
    assert taken == [16, 64, 70, 64, 16, 16, 16, 1, 16]
