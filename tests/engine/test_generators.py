"""The conformance suite for every generator, and what is special about two of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch
from generator_conformance import *  # noqa: F403
from generator_world import GREEDY, World, changed

from vidqa.engine.generators import GENERATORS, open_native
from vidqa.engine.generators._base import Generator
from vidqa.engine.generators.sampler import draw, draw_key, uniform


@pytest.fixture(params=["transformers", "native"])
def generator(request: pytest.FixtureRequest) -> Generator:
    return GENERATORS[request.param]


def test_draws_follow_the_distribution_at_every_temperature() -> None:
    """Of 700 tokens, more than two chunks; tokens of -inf are never drawn, and temperature 0 takes the likeliest."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(700, generator=generator) * 3
    logits[[0, 255, 256, 699]] = -torch.inf
    rows, count = 40_000, torch.zeros(40_000, dtype=torch.int64)
    keys = torch.tensor([draw_key(0, str(number)) for number in range(rows)])
    for temperature in (0.7, 1.0, 2.5):
        drawn = [
            draw(logits.expand(4000, -1), torch.full((4000,), temperature), key, count[:4000])
            for key in keys.split(4000)
        ]
        share = torch.bincount(torch.cat(drawn), minlength=700) / rows
        expected = (logits / temperature).softmax(-1)
        error = (share - expected).abs() / (expected * (1 - expected) / rows).sqrt().clamp(min=1e-9)
        assert (share[expected == 0] == 0).all()
        assert error[expected * rows > 10].max() < 5, temperature
    greedy = draw(logits.expand(5, -1), torch.zeros(5), keys[:5], count[:5])
    assert (greedy == logits.argmax()).all()


def test_a_draw_depends_on_its_own_row_alone() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    keys, count = torch.tensor([draw_key(3, str(n)) for n in range(6)]), torch.arange(6)
    together = draw(logits, torch.ones(6), keys, count)
    alone = [draw(logits[n : n + 1], torch.ones(1), keys[n : n + 1], count[n : n + 1]) for n in range(6)]
    assert together.tolist() == [int(one) for one in alone]


def test_variates_are_uniform_over_keys_and_counts() -> None:
    keys, counts = (grid.flatten() for grid in torch.meshgrid(torch.arange(300), torch.arange(300), indexing="ij"))
    variates = uniform(keys, counts)
    assert variates.min() >= 0 and variates.max() < 1
    observed = torch.histc(variates, 100, 0, 1)
    assert ((observed - 900) ** 2 / 900).sum() < 160  # chi-squared of 99 degrees: 0.01 % are above it


def test_a_step_without_rows_leaves_those_that_are_there_alone(world: World) -> None:
    """Such a step stands before the capture of a graph, while prompts are being answered."""
    short, *others = changed(world.prompts[:4], sampling=replace(GREEDY, max_tokens=12), stop_ids=())
    short = replace(short, sampling=replace(GREEDY, max_tokens=2))
    with closing(open_native(world.settings(batch_size=4))) as session:
        results = session.generate(iter([short, *others]))
        found = next(results)
        decoder = session.decoder
        assert len(decoder.rows) == 3
        with decoder.without_rows():
            decoder.run(4)
        found += [result for some in results for result in some]
    assert {result.id: list(result.token_ids) for result in found} == {
        request.id: world.expected(request) for request in (short, *others)
    }
    assert not decoder.rows and len(session.pages.free) == len(session.pages.users) - 1


def test_a_step_takes_a_graph_that_is_there_before_another_is_captured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_native(world.settings(batch_size=70))) as session:
        decoder, captured = session.decoder, []

        def capture(size: int) -> None:
            captured.append(size)
            decoder.graphs[size] = size

        monkeypatch.setattr(decoder, "capture", capture)
        taken = [decoder.graph_for(count) for count in (5, 40, 70, 20, 9, 7, 3, 1, 2)]
    assert captured == [16, 64, 70, 1]
    assert taken == [16, 64, 70, 64, 16, 16, 16, 1, 16]
