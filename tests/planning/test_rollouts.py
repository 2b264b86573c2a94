"""What reinforcement learning holds on a GPU beside a training, and what its packs gather."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from test_answering_memory import LARGE

from vidqa.planning.packing import Steps
from vidqa.planning.rollouts import RolloutShape, longest_completions, rollout_memory
from vidqa.spec import Layer, resolve

PARAMETERS = 2_000_000_000


def grpo_spec(**keys: Any) -> Any:
    data = {"custom.train_dataset.annotation_path": "a.json", "custom.train_dataset.media_path": "videos"}
    return resolve("grpo", [Layer("test", {**data, "train.train_policy.reward_function": "accuracy", **keys})]).spec


def held(**keys: Any) -> Any:
    spec = grpo_spec(**keys)
    adapters = 1000 if spec.policy.lora else 0
    counts = SimpleNamespace(every=PARAMETERS + adapters, trained=adapters or PARAMETERS)
    model: Any = SimpleNamespace(sizes=LARGE, every=counts)
    return rollout_memory(spec, model, RolloutShape(64, 4096, 1000))


def test_a_reference_is_held_by_a_full_training_with_a_divergence() -> None:
    kl = {"train.train_policy.kl_beta": 0.1}
    plain, full = held(), held(**kl)
    assert full.gib - plain.gib == 2 * PARAMETERS / 2**30 and plain.reference == 0
    sharded = held(**kl, **{"policy.parallelism.dp_shard_size": 4})
    assert sharded.reference == full.reference / 4 and sharded.weights == full.weights
    assert (
        held(**kl, **{"policy.lora": {}, "policy.lora.lora_dropout": 0.0}).gib == plain.gib
    )  # adapters are turned off


def test_a_prompt_is_gathered_once_for_its_completions() -> None:
    prompts = [SimpleNamespace(record=None, plans=(), prompting=None, length=length) for length in (1000, 501)]
    completions = longest_completions(prompts, 8, 100)  # type: ignore[arg-type]
    steps = Steps(grpo_spec(), completions, 1, "cpu", 100_000, batch=16)
    assert steps.prefix_rows(range(16)) == 999 + 500
    assert steps.prefix_rows([0]) == 0  # alone it is a sample like any other
