"""The conformance suite for every generator, and what is special about the reference."""

from __future__ import annotations

import pytest
import torch
from generator_conformance import *  # noqa: F403

from vidqa.engine.generators import GENERATORS
from vidqa.engine.generators._base import Generator
from vidqa.engine.generators.reference import SeededDraws


@pytest.fixture(params=list(GENERATORS))
def generator(request: pytest.FixtureRequest) -> Generator:
    return GENERATORS[request.param]


def test_draws_follow_the_models_distribution() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -30.0]]).expand(4000, -1)
    seeds = [(0, str(number)) for number in range(4000)]
    drawn = SeededDraws(seeds, torch.device("cpu"))(torch.zeros(4000, 1), scores).argmax(-1)
    share = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(share, scores[0].softmax(-1), atol=0.03, rtol=0)
