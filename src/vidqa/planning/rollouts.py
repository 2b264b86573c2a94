"""Questions and completions of reinforcement learning as samples: what a rollout draws, and what an update computes.

The completions of a question are a group: all have its prompt in common, which stands in a pack once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vidqa.families import require_plain_weights
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.spec.models import GrpoSpec


def prompt_planner(spec: GrpoSpec, model_folder: Path) -> Planner:
    """The planner of a GrpoSpec's questions: prompts that end where the answer begins. Raises MODEL_QUANTIZED."""
    require_plain_weights(model_folder, "training begins with")
    mode = spec.custom.train_dataset.response_mode
    return Planner(model_folder, spec.custom.vision, Prompting(spec.custom.system_prompt, mode, for_generation=True))


@dataclass(frozen=True, slots=True, eq=False)
class CompletionSample(Sample):
    """A prompt with one completion behind it. `token_ids` int32 [S] are those of both, the last `completion` of them
    the completion's, of which all or none are supervised. All but the last token of the prompt is the prefix that the
    group shares. `values` are float32 [S] by name, for the objective."""

    token_ids: np.ndarray = field(kw_only=True)
    completion: int = field(kw_only=True)
    values: Mapping[str, np.ndarray] = field(kw_only=True)


def completion_sample(
    question: Sample,
    prompt_ids: np.ndarray,
    completion_ids: Sequence[int],
    group: str,
    *,
    trains: bool,
    values: Mapping[str, np.ndarray],
) -> CompletionSample:
    """`values` are float32 [C] of the completion's tokens; a group has a name of its own in its step."""
    padding, count = np.zeros(len(prompt_ids), np.float32), len(completion_ids)
    return CompletionSample(
        question.record,
        question.plans,
        question.prompting,
        len(prompt_ids) + count,
        count if trains else 0,
        len(prompt_ids) - 1,
        group.encode(),
        token_ids=np.concatenate([prompt_ids, np.array(completion_ids, np.int32)]),
        completion=count,
        values={name: np.concatenate([padding, value.astype(np.float32)]) for name, value in values.items()},
    )


def longest_completions(questions: Sequence[Sample], size: int, answer: int) -> list[Sample]:
    """For estimates of memory and time: each question as a group of `size` completions of `answer` tokens each."""
    return [
        Sample(
            question.record,
            question.plans,
            question.prompting,
            question.length + answer,
            answer,
            question.length - 1,
            f"{number}".encode(),
        )
        for number, question in enumerate(questions)
        for _ in range(size)
    ]
