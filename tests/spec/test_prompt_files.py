"""Prompt files as cosmos-reason2-inference reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.spec import resolve
from vidqa.spec.models import InferenceSpec
from vidqa.spec.prompt_files import ASK_REASONING, prompt_layer

FILE = """
system_prompt: |
  You are a careful observer.
user_prompt: |
  What happens here?
sampling_params: {temperature: 0.7, top_p: 0.8, top_k: -1, seed: 3407, max_tokens: 99, n: 1, presence_penalty: 0.0}
"""


def asked(tmp_path: Path, text: str, **how: bool) -> InferenceSpec:
    from vidqa.spec import Layer

    (tmp_path / "prompt.yaml").write_text(text)
    keys = {"model.model_name": str(tmp_path), "dataset.annotation_path": "clips", "results_dir": "out"}
    spec = resolve("inference", [Layer("test", keys), prompt_layer(tmp_path / "prompt.yaml", **how)]).spec
    assert isinstance(spec, InferenceSpec)
    return spec


def test_prompts_and_sampling_are_keys_of_an_inference(tmp_path: Path) -> None:
    spec = asked(tmp_path, FILE)
    assert (spec.dataset.system_prompt, spec.inference.prompt) == ("You are a careful observer.", "What happens here?")
    found = spec.generation
    assert (found.temperature, found.top_p, found.top_k, found.max_tokens) == (0.7, 0.8, 0, 99)
    assert spec.inference.seed == 3407


def test_reasoning_is_asked_for_and_has_room(tmp_path: Path) -> None:
    spec = asked(tmp_path, "user_prompt: Why?\n", reasoning=True)
    assert spec.inference.prompt == f"Why?\n\n{ASK_REASONING}" and spec.generation.max_tokens == 4096
    assert asked(tmp_path, FILE, reasoning=True).generation.max_tokens == 99  # the file says so
    alone = prompt_layer(None, reasoning=True).table
    assert alone["inference.prompt"].endswith(ASK_REASONING) and prompt_layer(None).table == {}


@pytest.mark.parametrize(
    "text",
    ["prompt: Why?\n", "user_prompt: 3\n", "sampling_params: {best_of: 2}\n", "sampling_params: {n: 4}\n", "[1]\n"],
)
def test_what_cannot_be_taken_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProblemError) as refused:
        asked(tmp_path, text)
    assert refused.value.problems[0].code in ("SPEC_FILE", "SPEC_FILE")
