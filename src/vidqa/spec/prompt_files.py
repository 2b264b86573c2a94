"""Read prompt files of cosmos-reason2-inference: system_prompt, user_prompt and sampling_params, in YAML.

prompt_layer(Path("prompts/caption.yaml"), reasoning=True)      keys of an inference
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem, raise_errors
from vidqa.spec.evaluate_tables import Inference
from vidqa.spec.layers import Layer, place, read_layer
from vidqa.spec.problems import FILE

ASK_REASONING = "Think about it first, between <think> and </think>. Write the answer right after </think>."
REASONING_TOKENS = 4096  # maximum of new tokens, including reasoning
PROMPTS = {"system_prompt": "dataset.system_prompt", "user_prompt": "inference.prompt"}
SAMPLING = {
    **{name: f"generation.{name}" for name in ("max_tokens", "temperature", "repetition_penalty", "top_p", "top_k")},
    **{"presence_penalty": "generation.presence_penalty", "frequency_penalty": "generation.frequency_penalty"},
    "seed": "inference.seed",
}


def prompt_layer(path: Path | None, *, reasoning: bool = False) -> Layer:
    """Read a prompt file as keys of an inference; with `reasoning` the prompt asks the model to think first.

    Raises SPEC_FILE.
    """
    written = read_layer(path) if path else Layer("--reasoning")
    problems: list[Problem] = []
    values: dict[str, Any] = {"generation.max_tokens": REASONING_TOKENS} if reasoning else {}
    for name, value in written.table.items():
        if name in PROMPTS and isinstance(value, str):
            values[PROMPTS[name]] = value.strip()
        elif name == "sampling_params" and isinstance(value, dict):
            values |= _sampling(written, value, problems)
        else:
            message = f"{name} is not {', '.join(PROMPTS)} or sampling_params, or has the wrong type"
            problems.append(FILE.at(place(written, str(name)), message))
    raise_errors(problems)
    if reasoning:
        prompt = values.get("inference.prompt") or Inference().prompt
        values["inference.prompt"] = with_reasoning(prompt)
    return Layer(written.name, values, written.text)


def with_reasoning(question: str) -> str:
    """Append a request to think before the answer."""
    return f"{question.rstrip()}\n\n{ASK_REASONING}"


def _sampling(written: Layer, params: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    values = {}
    for name, value in params.items():
        if name in SAMPLING:
            values[SAMPLING[name]] = max(0, value) if name == "top_k" and isinstance(value, int) else value
        elif (name, value) != ("n", 1):
            message = f"{name} is not supported; sampling_params may have {', '.join(SAMPLING)}"
            problems.append(FILE.at(place(written, str(name)), message))
    return values
