"""Reinforcement learning: groups of completions of the model's own, rewarded, and learned from by GRPO."""

from __future__ import annotations

from dataclasses import replace

from vidqa.core.actions._base import Parent, RecordSampling
from vidqa.core.actions.train import TRAIN, held_out

GRPO = replace(
    TRAIN,
    name="grpo",
    spec="vidqa.spec.models:GrpoSpec",
    tables=("train", "policy", "custom", "validation", "logging", "rollout"),
    reads=lambda spec: (*TRAIN.reads(spec), "train.train_policy.reward_function", "validation.reward_function"),
    rules="vidqa.spec.grpo_rules:grpo_rules",
    built_from="--parent-run RUN --train-root DATA",
    profiles={
        "full": {},
        "frozen-vision": {"policy.freeze_pattern": ["visual"]},
        "lora": {"policy.lora": {}, "policy.lora.lora_dropout": 0.0, "train.optm_lr": 1e-5},
    },
    shorthand={
        **{name: key for name, key in TRAIN.shorthand.items() if name != "mini_batch"},
        "n_generation": "rollout.n_generation",
        "max_response_length": "rollout.max_response_length",
        "kl_beta": "train.train_policy.kl_beta",
        "reward_function": "train.train_policy.reward_function",
    },
    parent=Parent("best", "vidqa.spec.parent_layers:refined"),
    cosmos=False,
    is_searched=False,
    draws=True,
    program="vidqa.engine.rl.train:train",
    proof="vidqa.engine.rl.replay:prove",
    proves_run=True,
    page="vidqa.evaluation.rewards.report",
    sampling=RecordSampling(
        planner="vidqa.planning.rollouts:prompt_planner",
        vision="custom.vision",
        length_key="policy.model_max_length",
        longest=lambda spec: spec.policy.model_max_length - spec.rollout.max_response_length,
        held_out=held_out,
        modes={"validation": "vidqa.planning.samples:validation_mode"},
    ),
)
