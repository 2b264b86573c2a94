"""The conformance suite of generators on the other family."""

from __future__ import annotations

import pytest
from generator_conformance import *  # noqa: F403
from generator_world import World

from vidqa.contract.problem import ProblemError
from vidqa.engine.generators import NATIVE, VLLM
from vidqa.engine.generators._base import Generator


@pytest.fixture(scope="module")
def family() -> str:
    return "qwen2_5_vl"


@pytest.fixture
def generator() -> Generator:
    """The one that has a forward of its own."""
    return NATIVE


def test_vllm_is_refused_before_it_starts(world: World) -> None:
    with pytest.raises(ProblemError) as caught:
        VLLM.open(world.settings(vllm_python="/there/is/none"))
    (problem,) = caught.value.problems
    assert problem.code == "MODEL_NOT_IN_VLLM" and "native" in problem.remedy
