"""The conformance suite for the native generator on CUDA, whose steps are replayed graphs; never runs in CI.

On a machine with a GPU: pytest tests/engine/test_cuda_generators.py -m gpu
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from generator_conformance import *  # noqa: F403

from vidqa.engine.families import FAMILIES
from vidqa.engine.generators import NATIVE
from vidqa.engine.generators._base import Generator

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.fixture(scope="module", params=[family.tables.name for family in FAMILIES])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def generator() -> Generator:
    return Generator("native on CUDA", lambda settings: NATIVE.open(replace(settings, device=torch.device("cuda", 0))))
