"""The tables of reinforcement learning by GRPO that replace or extend those of supervised training, and the names of
rewards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from vidqa.spec._field import Count, CountOrNull, NotNegative, Positive, PositiveFloat, Share, Table, key, table
from vidqa.spec.compat_keys import with_compat_keys
from vidqa.spec.run_tables import TrainEngine, Validation
from vidqa.spec.train_tables import LearningRate, Train, TrainDataset

Reward = str | list[str] | dict[str, float]
# Canonical names of built-in rewards, by name.
REWARDS = {name: name for name in ("accuracy", "format", "format_strict", "number", "distance", "token_f1")}
REWARDS["single_choice"] = "accuracy"  # cosmos-rl's name
REWARD_NAMES = "name accuracy, format, format_strict, number, distance, token_f1 or FILE.py:FUNCTION"  # remedy
USER_FUNCTION = re.compile(r"^(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)$")
MOST_RETRIES = 10  # rounds of dapo if max_retry_for_on_policy is -1


class OverlongReward(Table):
    enable_overlong_penalty: bool = key(
        False, "Overlong penalty", "Subtract from the reward of completions close to max_response_length."
    )
    buffer_length: Positive = key(
        4096, "Buffer", "Tokens before rollout.max_response_length over which the penalty rises from 0."
    )
    penalty_factor: NotNegative = key(1.0, "Penalty", "Penalty of a completion of max_response_length tokens.")


@with_compat_keys
class GrpoPolicy(Table):
    type: Literal["grpo"] = key("grpo", "Training type", "Group relative policy optimization. Always written.")
    dataset: TrainDataset = table(TrainDataset, "Dataset", "Held-out part of the training set.")
    variant: Literal["grpo", "gspo", "dapo"] = key(
        "grpo",
        "Variant",
        "grpo: one probability ratio per token. gspo: one per completion, from its mean log-probability. dapo: grpo "
        "that drops groups of equal rewards and replaces them by further questions.",
    )
    temperature: PositiveFloat | None = key(
        None,
        "Temperature",
        "Temperature of sampling and of log-probabilities. Unset follows rollout.sampling_config.temperature; both "
        "unset is 1.",
    )
    epsilon_low: NotNegative = key(0.2, "Lower clip", "The probability ratio is clipped below 1 - epsilon_low.")
    epsilon_high: NotNegative = key(0.2, "Upper clip", "The probability ratio is clipped above 1 + epsilon_high.")
    lower_bound_ratio: Annotated[float, Field(gt=1)] = key(
        3.0, "Dual clip", "With a negative advantage A the loss of a token is at most -lower_bound_ratio x A."
    )
    kl_beta: NotNegative = key(
        0.0,
        "KL weight",
        "Weight of the KL divergence from the initial model. Above 0, log-probabilities of that model are computed as "
        "well; full fine-tuning then keeps a frozen sharded copy of it.",
    )
    mu_iterations: Positive = key(1, "Passes over a rollout", "Training passes over the completions of a step.")
    batch_size_per_optimize: Positive | None = key(
        None, "Update batch", "Completions per optimizer update, over all ranks; unset is all of a step."
    )
    loss_type: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = key(
        "token-mean",
        "Loss aggregation",
        "token-mean: all tokens of a step have equal weight. seq-mean-token-mean: all completions do. "
        "seq-mean-token-sum: the sum over tokens, divided by the number of completions.",
    )
    unbiased_loss_max_tokens: Positive | None = key(
        None, "Loss divisor", "With seq-mean-token-sum, also divide by this constant number of tokens."
    )
    unbiased_advantage: bool = key(
        False, "Unbiased advantage", "The advantage is reward - mean, not divided by the group's standard deviation."
    )
    behav_imp_weight_cap: PositiveFloat | None = key(
        None,
        "Rollout correction",
        "Weight each token by exp(log-probability of the trainer - of the rollout), at most this. Unset: no weight.",
    )
    reward_function: Reward = key(
        ["single_choice"],
        "Rewards",
        "A name, a list of names, or a table of weights. accuracy (also single_choice): 1 if the evaluation counts it "
        "as correct. format: 1 for <think>...</think> <answer>...</answer>; format_strict as in cosmos-rl. number: 1 "
        "within 1 % of a numeric answer. distance: 1, 0.5 or 0 for a numeric answer 0, 1 or more away. token_f1: word "
        "F1 with the reference. FILE.py:FUNCTION: your own function(text, record, token_ids, finish_reason) -> "
        "number, or (number, table of parts).",
    )
    filter_reward_metric: str | list[str] = key(
        [], "Filter metric", "Reward part whose spread decides whether dapo drops a group; empty is accuracy."
    )
    overlong_reward: OverlongReward = table(OverlongReward, "Overlong reward", "Penalty of long completions.")
    max_retry_for_on_policy: Annotated[int, Field(ge=-1)] = key(
        -1, "Retry rounds", "Maximum rounds of further questions that dapo adds to fill a step; -1 is 10."
    )
    dataloader_shuffle: bool = key(True, "Shuffle", "Shuffle the questions anew in every epoch.")
    dataloader_seed: Count = key(0, "Order seed", "Seed of the order of questions and of shuffled options.")
    dataloader_num_workers: Count = key(8, "Decode workers", "Video decoding processes per rank, at least one.")


@with_compat_keys
class GrpoTrain(Train):
    train_batch_per_replica: Positive = key(
        128,
        "Completions per step",
        "Completions per step over all ranks, a multiple of rollout.n_generation: 128 with 8 completions per question "
        "is 16 questions on any number of GPUs.",
    )
    epoch: Positive = key(1, "Epochs", "Passes over the questions.")
    optm_lr: LearningRate = key(
        1e-6,
        "Learning rate",
        "Peak learning rate. 1e-6 is usual for full training, 1e-5 for LoRA.",
    )
    train_policy: GrpoPolicy = table(  # type: ignore[assignment]  # TrainPolicy is that of supervised training
        GrpoPolicy, "Policy optimization", "Objective, rewards, order of questions."
    )


@with_compat_keys
class SamplingConfig(Table):
    temperature: PositiveFloat | None = key(
        None,
        "Temperature",
        "Temperature of rollouts. Unset follows train.train_policy.temperature; both unset is 1.",
    )


@with_compat_keys
class Rollout(Table):
    n_generation: Positive = key(8, "Completions per question", "Size of a group; at least 2.")
    max_response_length: Positive = key(1024, "Maximum completion length", "Maximum tokens of a completion.")
    seed: CountOrNull = key(0, "Rollout seed", "Random seed, combined with step, question and completion index.")
    sampling_config: SamplingConfig = table(SamplingConfig, "Sampling", "Token sampling.")


@with_compat_keys
class GrpoValidation(Validation):
    enable: bool = key(
        False, "Validate", "Answer the validation set during training; its accuracy selects the best export."
    )
    temperature: NotNegative = key(0.0, "Temperature", "Temperature of validation answers; 0 is greedy.")
    n_generation: Positive = key(
        1, "Answers per question", "Answers per question; more than 1 needs a temperature above 0."
    )
    max_response_length: Positive | None = key(
        None, "Maximum answer length", "Maximum tokens of an answer; unset is rollout.max_response_length."
    )
    reward_function: Reward = key([], "Rewards", "Rewards of validation answers; empty is those of training.")
    top_k: int | None = key(1, "Top k", "Greedy by default.", native="no effect", instead="validation.temperature")
    top_p: float | None = key(None, "Top p", "Nucleus sampling.", only=[None, 1.0])
    repetition_penalty: PositiveFloat = key(1.0, "Repetition penalty", "1 is none.", only=[1.0])
    use_remote_reward: bool | None = key(None, "Remote reward", "Reward service.", only=[None, False])


class StopRules(Table):
    """Rules that stop a run that goes wrong; each warns first."""

    patience: Positive = key(
        5, "Patience", "Consecutive measurements beyond a bound after which the run stops, saved and resumable."
    )
    entropy_below: NotNegative | None = key(
        None, "Entropy floor", "Minimum mean entropy of the sampled distributions, nats per token. Unset is off."
    )
    kl_above: PositiveFloat | None = key(
        None, "KL ceiling", "Maximum mean KL divergence from the initial model, nats per token. Unset is off."
    )
    truncated_above: Share = key(
        0.95, "Truncation ceiling", "Maximum share of completions that reach rollout.max_response_length. 1 is off."
    )
    validation_below_start: bool = key(
        True,
        "Validation floor",
        "Stop if validation accuracy (or reward, without it) is below the first one by over two standard errors.",
    )


@with_compat_keys
class GrpoEngine(TrainEngine):
    balance: Literal["none", "label"] = key(
        "none",
        "Balance",
        "label: every step has equally many questions of each label (letter, yes or no, class).",
    )
    shuffle_options: bool = key(
        False,
        "Shuffle options",
        "Permute the options of multiple-choice questions in every step, and the reference with them, against a bias "
        "to one letter.",
    )
    truncated: Literal["keep", "mask"] = key(
        "keep",
        "Truncated completions",
        "keep: they are trained with their reward. mask: their reward counts in the group, their tokens have no loss.",
    )
    reward_timeout_s: PositiveFloat = key(
        10.0, "Reward limit", "Time limit of a call of your reward function, in seconds."
    )
    stop: StopRules = table(StopRules, "Stop rules", "Rules that stop a run that goes wrong.")


def reward_weights(value: Any) -> dict[str, float]:
    """The weight of each reward in a `reward_function`: one name, a list (weight 1 each) or a table."""
    if isinstance(value, Mapping):
        return {str(name): float(weight) for name, weight in value.items()}
    return dict.fromkeys([value] if isinstance(value, str) else value, 1.0)


def reward_part(name: str) -> str:
    """The name of a reward's part and of its metric: of FILE.py:FUNCTION the function."""
    return REWARDS.get(name, name.rpartition(":")[2])
