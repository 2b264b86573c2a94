"""8-bit and 4-bit products on CUDA: compiled kernels, and a quantized folder in the native generator; never runs in CI.

On a machine with a GPU: pytest tests/engine/test_cuda_quantized.py -m gpu
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from generator_world import *  # noqa: F403
from generator_world import GREEDY, World, changed
from quantized_folder import quantized

from vidqa.core.environment import child_environment, python_path
from vidqa.engine.generators.hf import open_transformers
from vidqa.engine.generators.native import open_native
from vidqa.engine.kernels.float8 import FEW_ROWS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_kernels_round_and_multiply_as_plain_ones() -> None:
    command = [sys.executable, str(Path(__file__).with_name("float8_kernels.py"))]
    environment = child_environment(PYTHONPATH=python_path())
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("scheme", "words"), [("FP8_DYNAMIC", "8-bit floats"), ("FP8", "8-bit floats"), ("W4A16", "4-bit integers")]
)
def test_weights_stay_in_few_bits_and_answer_as_transformers_does(
    world: World, tmp_path: Path, scheme: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Packs of more than FEW_ROWS tokens multiply by `torch._scaled_mm`, or with dequantized weights; steps by our
    kernel, or PyTorch's int4 product, in a captured graph."""
    folder, scores = quantized(tmp_path / scheme, world.folder, scheme, dtype=torch.bfloat16), []
    settings = world.settings(folder=folder, dtype=torch.bfloat16, device=torch.device("cuda", 0))
    candidates = tuple(world.planner.chat.text_ids(text) for text in ("Yes.", "B"))
    assert sum(request.length for request in world.prompts) > FEW_ROWS, "a pack has them all"
    for generator in (open_native, open_transformers):
        with closing(generator(settings)) as session:
            requests = changed(world.prompts, candidates=candidates)
            results = [result for some in session.generate(iter(requests)) for result in some]
            scores.append({result.id: result.scores for result in results})
            if generator is open_native:
                greedy = changed(world.prompts, sampling=replace(GREEDY, max_tokens=4))
                assert all(result.token_ids for some in session.generate(iter(greedy)) for result in some)
                assert f"14 layers multiply in {words}" in capsys.readouterr().err
    for name, expected in scores[1].items():
        assert scores[0][name] == pytest.approx(expected, abs=0.1)
