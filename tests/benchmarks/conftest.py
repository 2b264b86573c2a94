"""A tiny model and a small set of clips, as the benchmarks make them; their programs can be imported."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    from shapes import write_random_model
    from video_set import SetShape, corpus, write_set

    folder = tmp_path_factory.mktemp("benchmarks")
    model = write_random_model("tiny", folder / "model", corpus(), "cpu")
    return SimpleNamespace(model=model, data=write_set(folder / "set", SetShape(3, (2, 5), width=96, height=64)))
