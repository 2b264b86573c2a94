"""vLLM on the CPU with Qwen2.5-VL: the conformance suite, and times of videos, which only rope positions tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from generator_conformance import *  # noqa: F403
from generator_world import World
from rope_times import *  # noqa: F403
from test_vllm import adapter_of, evaluated, generator, python, session  # noqa: F401


@pytest.fixture(scope="module")
def family() -> str:
    return "qwen2_5_vl"


def test_an_evaluation_of_an_adapter_has_the_answers_of_the_reference(
    world: World,
    python: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    adapter = adapter_of(world, tmp_path / "adapter", ["q_proj", "v_proj"], exclude_modules=".*visual.*")
    lora = {"model.model_name": str(adapter), "model.enable_lora": True, "model.base_model_path": str(world.folder)}
    expected = evaluated(world, tmp_path / "reference", **lora)
    vllm = {"evaluation.generator": "vllm", "engine.vllm.python": python}
    assert evaluated(world, tmp_path / "vllm", **lora, **vllm) == expected
