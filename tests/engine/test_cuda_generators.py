"""The conformance suite for the native generator on CUDA, whose steps are replayed graphs; never runs in CI.

On a machine with a GPU: pytest tests/engine/test_cuda_generators.py -m gpu
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from generator_conformance import *  # noqa: F403
from generator_world import Answering, World

from vidqa.engine.families import FAMILIES
from vidqa.engine.generators import native, open_native
from vidqa.engine.generators._base import Generator

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.fixture(scope="module", params=[family.tables.name for family in FAMILIES])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def generator() -> Generator:
    return lambda settings: open_native(replace(settings, device=torch.device("cuda", 0)))


def test_kernels_of_a_pack_are_planned_while_the_one_before_is_read(
    answers: Answering, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, list[int]]] = []
    collate, plan = native.PromptCollator.__call__, native.attend_zeros

    def collated(*args: Any) -> Any:
        batch: Any = collate(*args)
        seen.extend(("read", call) for _, *call in (*batch.segments, *batch.vision.segments))
        return batch

    def planned(call: tuple[int, int], *args: Any, **changes: Any) -> torch.Tensor:
        seen.append(("planned", list(call)))
        return plan(call, *args, **changes)

    monkeypatch.setattr(native.PromptCollator, "__call__", collated)
    monkeypatch.setattr(native, "attend_zeros", planned)
    monkeypatch.setitem(native.PACK_TOKENS, "cuda", 1)  # a pack for each prompt
    answers(world.prompts, dtype=torch.bfloat16)
    first = [what for what, _ in seen].index("planned")
    for at, (what, call) in enumerate(seen):
        assert what == "planned" or at < first or ("planned", call) in seen[first:at]
