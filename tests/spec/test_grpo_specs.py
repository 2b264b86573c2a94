"""Specs of GRPO: cosmos-rl's recipe is taken as it is, and what cannot be is refused with its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vidqa.core.cli import command
from vidqa.core.problem import ProblemError
from vidqa.planning.resume_compat import spec_changes, spec_facts
from vidqa.spec import DataFacts, Layer, check_with_data, dump, load, resolve
from vidqa.spec.build import Request, build
from vidqa.spec.models import GrpoSpec
from vidqa.spec.schedule import effective_batch

DATA = {"custom.train_dataset.annotation_path": "/data/annotations.json"}
# The values of Cosmos-Reason1's recipe for reinforcement learning, in cosmos-rl's own tables.
RECIPE = """
redis = "12800"

[train]
resume = false
epoch = 80
output_dir = "./outputs/reason1-rl"
epsilon = 1e-6
optm_name = "AdamW"
optm_lr = 2e-6
optm_impl = "fused"
optm_weight_decay = 0.01
optm_betas = [0.9, 0.95]
optm_warmup_steps = 20
optm_grad_norm_clip = 1.0
async_tp_enabled = false
compile = false
param_dtype = "bfloat16"
fsdp_reduce_dtype = "float32"
fsdp_offload = false
fsdp_reshard_after_forward = "default"
train_batch_per_replica = 128
sync_weight_interval = 1

[rollout]
gpu_memory_utilization = 0.7
enable_chunked_prefill = false
max_response_length = 6144
n_generation = 8
batch_size = 4
quantization = "none"

[rollout.parallelism]
n_init_replicas = 1
tp_size = 2
pp_size = 1

[rollout.sampling_config]
temperature = 0.9
top_p = 1.0

[policy]
model_name_or_path = "hf_model://nvidia/Cosmos-Reason1-7B"
model_max_length = 10240
model_gradient_checkpointing = true

[policy.parallelism]
n_init_replicas = 1
tp_size = 1
cp_size = 1
dp_shard_size = 2
pp_size = 1
dp_replicate_size = 1

[logging]
logger = ["console"]
project_name = "cosmos_rl"
experiment_name = "reason1_rl"

[train.train_policy]
type = "grpo"
dataset.name = "nvidia/Cosmos-Reason1-RL-Dataset"
dataset.subset = "robovqa"
dataset.split = ""
enable_dataset_cache = false
prompt_column_name = ""
reward_function = ["single_choice", "format"]
temperature = 0.9
epsilon_low = 0.2
epsilon_high = 0.2
kl_beta = 0.0
mu_iterations = 1
min_filter_prefix_tokens = 1
mini_batch = 2
allowed_outdated_steps = 4

[train.ckpt]
enable_checkpoint = true
save_freq = 20
save_mode = "async"
"""


def test_the_recipe_of_cosmos_reason1_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(RECIPE)
    resolved = build(Request("grpo", overrides=(file,)))
    spec = resolved.spec
    assert isinstance(spec, GrpoSpec)
    assert (effective_batch(spec), spec.temperature) == (16, 0.9)
    assert spec.custom.train_dataset.annotation_path == "hf_dataset://nvidia/Cosmos-Reason1-RL-Dataset#robovqa:"
    assert spec.train.optm_betas == [0.9, 0.95] and spec.rollout.max_response_length == 6144
    without_effect = {problem.where.split()[-1] for problem in resolved.warnings if problem.code == "SPEC_NO_EFFECT"}
    assert {"rollout.gpu_memory_utilization", "rollout.batch_size", "rollout.parallelism"} <= without_effect
    written = tmp_path / "spec.toml"
    written.write_text(dump(spec))
    assert load(written, "grpo") == spec


@pytest.mark.parametrize(
    ("action", "other", "code"), [("train", "grpo", "SPEC_ACTION"), ("grpo", "train", "SPEC_ACTION")]
)
def test_a_spec_of_the_other_training_is_refused_for_that_first(
    tmp_path: Path, action: str, other: str, code: str
) -> None:
    """Whether it was written here or is cosmos-rl's own; the remedy names the other action."""
    file = tmp_path / "other.toml"
    written = dump(resolve(other, [Layer("test", DATA)]).spec)
    for text in (written, *([RECIPE] if other == "grpo" else [])):
        file.write_text(text)
        with pytest.raises(ProblemError) as refused:
            build(Request(action, overrides=(file,)))
        problem, *others = refused.value.problems
        assert problem.code == code and f"the action {other}" in problem.remedy
        assert not [each for each in others if each.where.endswith("trainer_type")]
    if other == "grpo":
        (checkpoint := tmp_path / "run/checkpoints/step_1/policy").mkdir(parents=True)
        (checkpoint / "__0_0.distcp").write_bytes(b"\0")
        (tmp_path / "run/spec.toml").write_text(written)
        with pytest.raises(
            ProblemError, match=r"^error SPEC_PARENT_RUN [^\n]*\n[^\n]*\n  fix: [^\n]*--model .*run/best$"
        ):
            build(Request(action, parent_run=tmp_path / "run"))


def test_it_is_not_written_for_the_container_of_cosmos_rl() -> None:
    with pytest.raises(ProblemError) as refused:
        build(Request("grpo", sets=("custom.train_dataset.annotation_path=/data/a.json",), target="cosmos-rl"))
    assert [problem.code for problem in refused.value.problems] == ["SPEC_NOT_SUPPORTED"]


def test_an_adapter_as_parent_is_refused_with_the_command_that_merges_it(tmp_path: Path) -> None:
    export = tmp_path / "a run/safetensors/step_1"
    export.mkdir(parents=True)
    (export / "adapter_config.json").write_text("{}")
    (export / "adapter_model.safetensors").write_bytes(b"")
    (tmp_path / "a run/best.json").write_text('{"name": "step_1", "step": 1}')
    with pytest.raises(ProblemError) as refused:
        build(Request("grpo", parent_run=tmp_path / "a run", sets=("custom.train_dataset.annotation_path=/data",)))
    (problem,) = refused.value.problems
    assert problem.code == "SPEC_MODEL"
    assert command("export", tmp_path / "a run", "--merge", "--out", "FOLDER") in problem.remedy


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rollout.n_generation": 1, "train.train_batch_per_replica": 16}, "SPEC_VALUE"),
        ({"train.train_batch_per_replica": 100}, "SPEC_CONFLICT"),
        ({"train.train_policy.batch_size_per_optimize": 12}, "SPEC_CONFLICT"),
        ({"train.train_policy.type": "sft"}, "SPEC_ACTION"),
        ({"rollout.sampling_config.top_p": 0.9}, "SPEC_NOT_SUPPORTED"),
        ({"rollout.sampling_config.top_k": 40}, "SPEC_NOT_SUPPORTED"),
        ({"rollout.sampling_config.repetition_penalty": 1.1}, "SPEC_NOT_SUPPORTED"),
        ({"train.train_policy.use_remote_reward": True}, "SPEC_NOT_SUPPORTED"),
        (
            {"train.train_policy.temperature": 0.9, "rollout.sampling_config.temperature": 1.0},
            "SPEC_CONFLICT",
        ),
        ({"policy.parallelism.cp_size": 2}, "SPEC_CONFLICT"),
        ({"train.fp8.enable_fp8": True}, "SPEC_CONFLICT"),
        ({"policy.lora": {}}, "SPEC_CONFLICT"),
        (
            {
                "policy.lora.lora_dropout": 0.0,
                "policy.lora.modules_to_save": ["visual"],
                "train.train_policy.kl_beta": 0.1,
            },
            "SPEC_CONFLICT",
        ),
        (
            {
                "policy.lora": {},
                "policy.lora.lora_dropout": 0.0,
                "policy.lora.init_lora_weights": False,
                "train.train_policy.kl_beta": 0.1,
            },
            "SPEC_CONFLICT",
        ),
        ({"train.train_policy.reward_function": "helpfulness"}, "SPEC_VALUE"),
        ({"train.train_policy.reward_function": {"accuracy": 0.0, "format": 0}}, "SPEC_VALUE"),
        ({"train.train_policy.reward_function": ["accuracy", "single_choice"]}, "SPEC_VALUE"),
        ({"train.train_policy.reward_function": ["a.py:short", "b.py:short"]}, "SPEC_VALUE"),
        ({"train.train_policy.filter_reward_metric": "format"}, "SPEC_VALUE"),
        ({"rollout.max_response_length": 50_000}, "SPEC_MODEL_MAX_LENGTH"),
        ({"rollout.multi_turn_config": {"enable": True}}, "SPEC_UNKNOWN_KEY"),
        ({"train.train_policy.kl_betta": 0.1}, "SPEC_UNKNOWN_KEY"),
    ],
)
def test_what_is_not_possible_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ProblemError) as refused:
        resolve("grpo", [Layer("test", {**DATA, **changes})])
    assert code in {problem.code for problem in refused.value.problems if problem.severity == "error"}


@pytest.mark.parametrize(
    ("key", "value", "needed"),
    [
        ("engine.stop.kl_above", 0.5, {"train.train_policy.kl_beta": 0.1}),
        ("train.train_policy.filter_reward_metric", "accuracy", {"train.train_policy.variant": "dapo"}),
        ("train.train_policy.unbiased_loss_max_tokens", 50, {"train.train_policy.loss_type": "seq-mean-token-sum"}),
    ],
)
def test_a_key_that_needs_another_one_is_named_without_it(key: str, value: Any, needed: dict[str, Any]) -> None:
    for table, named in (({**DATA, key: value}, [key]), ({**DATA, key: value, **needed}, [])):
        warnings = resolve("grpo", [Layer("test", table)]).warnings
        assert [warning.where for warning in warnings if warning.code == "SPEC_NO_EFFECT"] == named


@pytest.mark.parametrize(
    "changes", [{"rollout.sampling_config.temperature": 0.7}, {"train.train_policy.temperature": 0.7}]
)
def test_the_temperature_that_is_not_set_follows_the_other(changes: dict[str, Any]) -> None:
    spec = resolve("grpo", [Layer("test", {**DATA, **changes})]).spec
    assert isinstance(spec, GrpoSpec) and spec.temperature == 0.7


def test_a_set_without_a_step_says_how_many_completions_fit() -> None:
    spec = resolve("grpo", [Layer("test", DATA)]).spec
    (problem,) = [each for each in check_with_data(spec, DataFacts(14, 0, 100)) if each.severity == "error"]
    assert problem.code == "SPEC_ZERO_STEPS" and "14 questions" in problem.message and "112" in problem.remedy


@pytest.mark.parametrize(
    ("lora", "rate", "warned"), [(None, 1e-5, 0), (None, 2e-5, 1), ({"lora_dropout": 0.0}, 1e-4, 0)]
)
def test_a_rate_that_suits_supervised_training_is_high_here(lora: Any, rate: float, warned: int) -> None:
    table = {**DATA, "train.optm_lr": rate, **({"policy.lora": lora} if lora else {})}
    pairs = {**table, "engine.objective": "dpo"}
    for action, keys in (("grpo", table), ("train", pairs)):
        high = [each for each in resolve(action, [Layer("test", keys)]).warnings if each.code == "SPEC_VALUE"]
        assert len(high) == warned and all("1e-6" in each.remedy for each in high)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.train_policy.kl_beta", 0.1),
        ("train.train_policy.reward_function", ["format"]),
        ("engine.balance", "label"),
        ("rollout.n_generation", 4),
    ],
)
def test_who_resumes_with_another_objective_is_told(key: str, value: Any) -> None:
    before, now = (spec_facts(resolve("grpo", [Layer("test", table)]).spec) for table in (DATA, {**DATA, key: value}))
    refused, told = spec_changes(before, now)
    assert not refused and [text.partition(":")[0] for text in told] == [key]
