"""Training specs as Cosmos-Reason1, Cosmos-Reason2 and the cookbook publish them: each works or says what to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import ProblemError
from vidqa.spec import Resolved, TrainSpec
from vidqa.spec.build import Request, build
from vidqa.spec.serialization import render

MODEL = "hf_model://nvidia/Cosmos-Reason2-8B"
MESH = {"tp_size": 1, "cp_size": 1, "dp_shard_size": 8, "pp_size": 1}
LOGGED = {"logger": ["console", "wandb"], "project_name": "cosmos_reason", "experiment_name": "sft"}
SHORT: dict[str, Any] = {  # what the specs of Cosmos-Reason2 have in common
    "train": {"output_dir": "outputs/sft", "compile": False, "train_batch_per_replica": 32},
    "policy": {"model_name_or_path": "nvidia/Cosmos-Reason2-8B", "model_max_length": 4096, "parallelism": MESH},
    "logging": LOGGED,
}
LONG: dict[str, Any] = {  # and those of Cosmos-Reason1
    "redis": "12800",
    "train": {
        **SHORT["train"],
        **{"resume": False, "epoch": 1, "epsilon": 1e-6, "optm_name": "AdamW", "optm_lr": 2e-6, "optm_impl": "fused"},
        **{"optm_weight_decay": 0.01, "optm_betas": [0.9, 0.999], "optm_warmup_steps": 20, "optm_grad_norm_clip": 1.0},
        **{"async_tp_enabled": False, "param_dtype": "bfloat16", "fsdp_reduce_dtype": "float32"},
        **{"fsdp_offload": False, "fsdp_reshard_after_forward": "default", "sync_weight_interval": 1},
        "train_policy": {
            **{"type": "sft", "mini_batch": 4, "enable_dataset_cache": False, "dataloader_num_workers": 4},
            **{"dataloader_prefetch_factor": 4, "conversation_column_name": "conversations"},
        },
        "ckpt": {"enable_checkpoint": True, "save_freq": 30, "save_mode": "async"},
    },
    "policy": {
        **SHORT["policy"],
        "model_gradient_checkpointing": True,
        "parallelism": {**MESH, "n_init_replicas": 1, "dp_replicate_size": 1, "cp_rotate_method": "allgather"},
    },
    "logging": LOGGED,
}
SFT = {"train.train_policy": {"type": "sft", "mini_batch": 4}, "train.ckpt.enable_checkpoint": True}
VALIDATED = {"train.enable_validation": True, "train.validation_step": 30, "train.validation_batch_per_replica": 2}


def example(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The tables of a spec with some keys, by dotted names, of its own."""
    table = json.loads(json.dumps(base))
    for path, value in changes.items():
        *above, last = path.split(".")
        inside = table
        for name in above:
            inside = inside.setdefault(name, {})
        inside[last] = {**inside.get(last, {}), **value} if isinstance(value, dict) else value
    return table


def built(folder: Path, table: dict[str, Any], **more: Any) -> Resolved:
    (folder / "sft.toml").write_text(render(table, "toml"))
    return build(Request("train", overrides=(folder / "sft.toml",), **{"model": MODEL, **more}))


WORK: dict[str, dict[str, Any]] = {
    "Reason2, LLaVA": example(SHORT, {"custom.dataset": {"annotation_path": "a.json", "media_path": ""}, **SFT}),
    "Reason2, data set folder": example(SHORT, {"custom.dataset.path": "data/sft", "redis": "12800", **SFT}),
    "Reason1, local folder": example(
        LONG, {"train.train_policy.dataset": {"name": "/data/train", "subset": "", "split": "train"}, "train.epoch": 50}
    ),
    "traffic questions": example(
        SHORT,
        {
            "custom.dataset": {"annotation_path": "a.json", "media_path": "v", "system_prompt": "Be helpful."},
            "custom.vision.nframes": 8,
            "train": {"optm_lr": 2e-5, "optm_warmup_steps": 0, "optm_decay_type": "cosine", "enable_validation": False},
            "train.train_policy": {"type": "sft", "mini_batch": 1, "dataset": {"test_size": 0}},
            "train.ckpt": {"enable_checkpoint": True, "save_freq": 20},
        },
    ),
    "physical plausibility": example(
        SHORT,
        {
            "custom.dataset.path": "data/videophy2_train",
            "train": {"seed": 42, "epoch": 10, "optm_warmup_steps": 0.03, "optm_decay_type": "cosine"},
            "train.ckpt": {"enable_checkpoint": True, "max_keep": 20},
            "train.train_policy": {"type": "sft", "mini_batch": 4, "conversation_column_name": "conversations"},
        },
    ),
    "wafer maps": example(
        SHORT, {"custom.dataset": {"annotation_path": "a.json", "media_path": "m", "system_prompt": ""}, **SFT}
    ),
    "warehouse images": example(
        LONG,
        {
            "custom.dataset": {"annotation_path": "a.json", "media_path": "m"},
            "custom.vision": {"fps": 1, "resized_width": 960, "resized_height": 540},
            "train": {"epsilon": 1e-8, "optm_impl": "foreach", "master_dtype": "float32", "validation_step": 100},
            "train.enable_validation": False,
            "train.train_policy.dataset.test_size": 1,
        },
    ),
    "temporal localization": example(SHORT, {"custom.dataset.path": "data/hf", "train.epoch": 120, **SFT}),
    "captions of driving": example(
        LONG,
        {
            "train.train_policy.dataset": {"name": "/data/train", "test_size": 0.1},
            "train.ckpt": {"save_freq": 25, "max_keep": 2},
            **VALIDATED,
        },
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_an_example_works_with_the_model_named(tmp_path: Path, name: str) -> None:
    spec = built(tmp_path, WORK[name]).spec
    assert isinstance(spec, TrainSpec)
    assert spec.train.train_batch_per_replica == 32 and spec.policy.parallelism.dp_shard_size == 8
    assert spec.custom.train_dataset.annotation_path


# Of each: the problems that it has, each with the last word of its place.
REFUSED: dict[str, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    "reinforcement learning": (
        example(
            LONG,
            {
                "train.train_policy": {"type": "grpo", "epsilon_low": 0.2, "kl_beta": 0.05, "temperature": 0.9},
                "rollout": {"gpu_memory_utilization": 0.7, "n_generation": 8, "parallelism": {"tp_size": 4}},
                "custom.dataset.path": "data",
            },
        ),
        {
            ("SPEC_ACTION", "train.train_policy.type"),
            *(("SPEC_UNKNOWN_KEY", f"train.train_policy.{key}") for key in ("epsilon_low", "kl_beta", "temperature")),
            ("SPEC_UNKNOWN_KEY", "rollout"),
        },
    ),
    "collisions": (
        example(
            LONG,
            {
                "custom.dataset.path": "data",
                "train": {"optm_lr": [1e-5, 1e-5], "optm_impl": ["fused", "fused"]},
                "policy.parallelism": {"tp_size": 2, "pp_size": 2, "dp_shard_size": 1},
            },
        ),
        {("SPEC_NOT_SUPPORTED", f"policy.parallelism.{key}") for key in ("tp_size", "pp_size")},
    ),
    "grounding in 3D": (
        example(SHORT, {"custom.dataset": {"dataset_root": "d", "meta_file": "meta.json"}, "train.resume": True}),
        {("SPEC_UNKNOWN_KEY", f"custom.dataset.{key}") for key in ("dataset_root", "meta_file")},
    ),
    "captions with nothing to validate on": (
        example(LONG, {"train.train_policy.dataset.name": "/data/train", **VALIDATED}),
        {("SPEC_CONFLICT", "validation.enable")},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_is_named_each_with_what_to_write(tmp_path: Path, name: str) -> None:
    table, expected = REFUSED[name]
    with pytest.raises(ProblemError) as wrong:
        built(tmp_path, table)
    errors = [problem for problem in wrong.value.problems if problem.severity == "error"]
    found = {(problem.code, problem.where.split()[-1]) for problem in errors}
    assert found - {("SPEC_VALUE", "custom.train_dataset.annotation_path")} == expected
    assert all(len(problem.remedy) > 8 for problem in errors)


def test_a_named_data_set_of_the_hub_is_taken_with_subset_and_split(tmp_path: Path) -> None:
    named = {"name": "nvidia/Cosmos-Reason1-SFT-Dataset", "subset": "robovqa", "split": "understanding"}
    table = example(LONG, {"train.train_policy.dataset": {**named, "test_size": 100}, **VALIDATED})
    spec = built(tmp_path, table).spec
    assert isinstance(spec, TrainSpec)
    address = "hf_dataset://nvidia/Cosmos-Reason1-SFT-Dataset#robovqa:understanding"
    assert spec.custom.train_dataset.annotation_path == address
    assert (spec.train.train_policy.dataset.test_size, spec.validation.freq) == (100, 30)


def test_a_value_for_each_part_of_a_model_is_one_value_where_all_are_equal(tmp_path: Path) -> None:
    keys = {"optm_lr": [1e-5, 1e-5], "optm_impl": ["fused", "fused"]}
    spec = built(tmp_path, example(LONG, {"custom.dataset.path": "data", "train": keys})).spec
    assert isinstance(spec, TrainSpec) and (spec.train.optm_lr, spec.train.optm_impl) == (1e-5, "fused")
    other = example(LONG, {"custom.dataset.path": "data", "train.optm_lr": [1e-5, 2e-5, 1e-6]})
    with pytest.raises(ProblemError, match="SPEC_VALUE"):
        built(tmp_path, other)
