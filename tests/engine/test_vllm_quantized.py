"""vLLM on the CPU answers with quantized folders as transformers does; for 4-bit schemes it has no CPU kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from generator_conformance import CANDIDATES, World, changed
from generator_world import family, one_thread, world  # noqa: F401  fixtures
from quantized_folder import quantized

from vidqa.contract.cli import SKILL_ROOT
from vidqa.engine.generators._base import Generator, Settings
from vidqa.engine.generators.reference import TRANSFORMERS
from vidqa.engine.generators.vllm import VLLM

PYTHON = SKILL_ROOT / ".vllm/bin/python"
# Of a log-probability in bf16: activations that are rounded to 8 bits round the other way where kernels differ in the
# last bit. The model that is not quantized is 0.004 apart.
MOST_A_TOKEN = 0.05
NO_CPU_KERNEL = pytest.mark.skip(reason="vLLM has no CPU kernel for it; on a GPU it has")


def scores_of(generator: Generator, settings: Settings, world: World) -> dict[str, list[float]]:  # noqa: F811
    """Log-probabilities of the candidates behind every prompt."""
    session = generator.open(settings)
    requests = changed(world.prompts, candidates=CANDIDATES)
    results = [result for batch in session.generate(iter(requests)) for result in batch]
    session.close()
    return {result.id: list(result.scores) for result in results}


@pytest.mark.parametrize(
    "scheme",
    [
        "FP8_DYNAMIC",
        "W8A8",
        pytest.param("W4A16", marks=NO_CPU_KERNEL),
        pytest.param("NVFP4A16", marks=NO_CPU_KERNEL),
    ],
)
def test_vllm_scores_candidates_as_transformers_does(
    world: World,  # noqa: F811
    tmp_path: Path,
    scheme: str,
) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no environment with vLLM; `make vllm` makes it")
    folder = quantized(tmp_path / scheme, world.folder, scheme, dtype=torch.bfloat16)
    settings = replace(world.settings(folder=folder, batch_size=8, vllm_python=str(PYTHON)), dtype=torch.bfloat16)
    expected = scores_of(TRANSFORMERS, settings, world)
    found = scores_of(VLLM, settings, world)
    assert found.keys() == expected.keys() and len(expected) == len(world.prompts)
    for name, scores in expected.items():
        apart = [abs(a - b) / len(of) for a, b, of in zip(found[name], scores, CANDIDATES, strict=True)]
        assert max(apart) < MOST_A_TOKEN, f"{name}: {apart}"
