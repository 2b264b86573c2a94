"""The trainings of benchmarks/rl.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from video_set import SetShape

# Dense, and with random weights no answer would be right or wrong.
REWARD = "def odd(text, record, token_ids, finish_reason):\n    return sum(t % 2 for t in token_ids) / len(token_ids)\n"
EIGHT = SetShape(8, (20, 20))  # videos of 4k tokens


@dataclass(frozen=True)
class Case:
    """A training: a shape, in full or with LoRA, on clips, with other keys of the spec."""

    shape: str
    lora: bool = False
    clips: SetShape = EIGHT
    over: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_sharded(self) -> bool:
        """Whether GPUs share its weights: all of 8B does not fit one."""
        return self.shape == "8b" and not self.lora

    @property
    def as_tiny(self) -> Case:
        return Case("tiny", self.lora, SetShape(4, (1, 2), 1, 96, 64), {})


def questions(count: int, size: int = 8, answer: int = 128) -> dict[str, Any]:
    """Keys of steps of `count` questions with `size` completions of at most `answer` tokens each."""
    batch = {"train.train_batch_per_replica": count * size}
    return batch | {"rollout.n_generation": size, "rollout.max_response_length": answer}


# Cases whose memory is compared with the prediction. All their completions have the maximum length.
MEMORY = {
    "2b, 1k tokens": Case("2b", clips=SetShape(32, (5, 5)), over=questions(32)),
    "2b, 8k tokens": Case("2b", clips=SetShape(4, (40, 40)), over=questions(4)),
    "2b, 16 answers of 512": Case("2b", clips=SetShape(4, (20, 20)), over=questions(4, 16, 512)),
    "2b, KL divergence": Case("2b", over={"train.train_policy.kl_beta": 0.05}),
    "2b LoRA, 40 GiB": Case("2b", lora=True, over={"engine.gpu_memory_gib": 40}),
    "4b LoRA": Case("4b", lora=True),
    "8b LoRA, answers of 512": Case("8b", lora=True, clips=SetShape(4, (20, 20)), over=questions(4, 8, 512)),
}
