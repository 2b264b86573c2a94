"""The conformance suite of generators on the other family."""

from __future__ import annotations

import pytest
from generator_conformance import *  # noqa: F403
from rope_times import *  # noqa: F403

from vidqa.engine.generators import open_native
from vidqa.engine.generators._base import Generator


@pytest.fixture(scope="module")
def family() -> str:
    return "qwen2_5_vl"


@pytest.fixture
def generator() -> Generator:
    """The one that has a forward of its own."""
    return open_native
