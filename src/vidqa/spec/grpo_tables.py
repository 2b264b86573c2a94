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
        False, "Overlong penalty", "Subtract from the reward of completions that come near max_response_length."
    )
    buffer_length: Positive = key(
        4096, "Buffer", "Tokens before rollout.max_response_length in which the penalty rises from 0."
    )
    penalty_factor: NotNegative = key(1.0, "Penalty", "Penalty of a completion of max_response_length tokens.")


@with_compat_keys
class GrpoPolicy(Table):
    type: Literal["grpo"] = key("grpo", "Kind of training", "Group relative policy optimisation. Always written.")
    dataset: TrainDataset = table(TrainDataset, "Dataset", "How the training set is split.")
    variant: Literal["grpo", "gspo", "dapo"] = key(
        "grpo",
        "Variant",
        "grpo: a probability ratio for each token. gspo: one for each completion, of its mean log-probability. dapo: "
        "as grpo, and groups of equal rewards are dropped and replaced by further questions.",
    )
    temperature: PositiveFloat | None = key(
        None,
        "Temperature",
        "Temperature at which completions are drawn and their log-probabilities taken. Unset follows "
        "rollout.sampling_config.temperature; both unset is 1.",
    )
    epsilon_low: NotNegative = key(0.2, "Lower clip", "The probability ratio is clipped below 1 - epsilon_low.")
    epsilon_high: NotNegative = key(0.2, "Upper clip", "The probability ratio is clipped above 1 + epsilon_high.")
    lower_bound_ratio: Annotated[float, Field(gt=1)] = key(
        3.0, "Dual clip", "With a negative advantage A the loss of a token is at most -lower_bound_ratio x A."
    )
    kl_beta: NotNegative = key(
        0.0,
        "KL weight",
        "Weight of the KL divergence from the model that training began with. Above 0, log-probabilities of that model "
        "are computed as well; a full fine-tune then keeps a frozen sharded copy of it.",
    )
    mu_iterations: Positive = key(1, "Passes over a rollout", "How often the completions of a step are trained on.")
    batch_size_per_optimize: Positive | None = key(
        None, "Update batch", "Completions of one optimizer update, over all ranks; unset is all of a step."
    )
    loss_type: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = key(
        "token-mean",
        "Weight of tokens",
        "token-mean: every token of a step counts the same. seq-mean-token-mean: every completion does. "
        "seq-mean-token-sum: tokens are summed and divided by the number of completions.",
    )
    unbiased_loss_max_tokens: Positive | None = key(
        None, "Loss divisor", "With seq-mean-token-sum, also divide by this constant number of tokens."
    )
    unbiased_advantage: bool = key(
        False, "No division by deviation", "The advantage is reward - mean, without division by the group's deviation."
    )
    behav_imp_weight_cap: PositiveFloat | None = key(
        None,
        "Rollout correction",
        "Weigh each token by exp(log-probability of the trainer - of the rollout), at most this. Unset: no weight.",
    )
    reward_function: Reward = key(
        ["single_choice"],
        "Rewards",
        "A name, a list of names, or a table of weights. accuracy (also single_choice): 1 if the evaluation counts "
        "it as right. format: 1 for <think>...</think> <answer>...</answer>; format_strict as in cosmos-rl. "
        "number: 1 within 1 % of a numeric answer. distance: 1, 0.5 or 0 for a numeric answer 0, 1 or more away. "
        "token_f1: words shared with the reference. FILE.py:FUNCTION: your own function(text, record, token_ids, "
        "finish_reason) -> number, or (number, table of parts).",
    )
    filter_reward_metric: str | list[str] = key(
        [], "Filter metric", "Reward part whose spread decides whether dapo drops a group; empty is accuracy."
    )
    overlong_reward: OverlongReward = table(OverlongReward, "Overlong reward", "Penalty of long completions.")
    max_retry_for_on_policy: Annotated[int, Field(ge=-1)] = key(
        -1, "Retry rounds", "Rounds of further questions in which dapo fills a step; -1 is at most 10."
    )
    dataloader_shuffle: bool = key(True, "Shuffle", "Draw a new order of the questions in every epoch.")
    dataloader_seed: Count = key(0, "Order seed", "Seed of the order of questions and of shuffled options.")
    dataloader_num_workers: Count = key(8, "Decode workers", "Processes per rank that decode videos, at least one.")


@with_compat_keys
class GrpoTrain(Train):
    train_batch_per_replica: Positive = key(
        128,
        "Completions per step",
        "Completions of an optimizer step over all ranks, a multiple of rollout.n_generation: 128 with 8 completions "
        "a question is 16 questions on any number of GPUs.",
    )
    epoch: Positive = key(1, "Epochs", "Passes over the questions.")
    optm_lr: LearningRate = key(
        1e-6,
        "Learning rate",
        "Peak learning rate. 1e-6 is usual for full training, 1e-5 for LoRA.",
    )
    train_policy: GrpoPolicy = table(  # type: ignore[assignment]  # TrainPolicy is that of supervised training
        GrpoPolicy, "Policy optimisation", "Objective, rewards, order of questions."
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
    max_response_length: Positive = key(1024, "Longest completion", "Most tokens of a completion.")
    seed: CountOrNull = key(0, "Rollout seed", "Seed of the draws: with step, question and number of the completion.")
    sampling_config: SamplingConfig = table(SamplingConfig, "Sampling", "How tokens are drawn.")


@with_compat_keys
class GrpoValidation(Validation):
    enable: bool = key(
        False, "Validate", "Answer the validation set while training; its accuracy decides which export is best."
    )
    temperature: NotNegative = key(0.0, "Temperature", "Temperature of validation answers; 0 takes the likeliest.")
    n_generation: Positive = key(
        1, "Answers per question", "Answers of each question; more than 1 needs a temperature above 0."
    )
    max_response_length: Positive | None = key(
        None, "Longest answer", "Most tokens of an answer; unset is rollout.max_response_length."
    )
    reward_function: Reward = key([], "Rewards", "Rewards of validation answers; empty is those of training.")
    top_k: int | None = key(1, "Top k", "Greedy by default.", native="no effect", instead="validation.temperature")
    top_p: float | None = key(None, "Top p", "Cuts of the distribution.", only=[None, 1.0])
    repetition_penalty: PositiveFloat = key(1.0, "Repetition penalty", "1 is none.", only=[1.0])
    use_remote_reward: bool | None = key(None, "Remote reward", "Reward service.", only=[None, False])


class StopRules(Table):
    """When a run that goes wrong ends by itself; each warns before."""

    patience: Positive = key(
        5, "Patience", "Measurements in a row at which a bound is crossed before the run stops, saved and resumable."
    )
    entropy_below: NotNegative | None = key(
        None, "Entropy floor", "Mean entropy of the drawn distributions, nats per token. Unset is off."
    )
    kl_above: PositiveFloat | None = key(
        None, "KL ceiling", "Mean KL divergence from the start, nats per token. Unset is off."
    )
    truncated_above: Share = key(
        0.95, "Truncation ceiling", "Share of completions that reach rollout.max_response_length. 1 is off."
    )
    validation_below_start: bool = key(
        True,
        "Validation floor",
        "The validation accuracy (without it the reward) is below the first measurement by more than its error.",
    )


@with_compat_keys
class GrpoEngine(TrainEngine):
    balance: Literal["none", "label"] = key(
        "none",
        "Balance",
        "label: every step has as many questions of each label (letter, yes or no, class) as of the others.",
    )
    shuffle_options: bool = key(
        False,
        "Shuffle options",
        "Permute the options of multiple-choice questions in every step, and the reference with them, against a habit "
        "of one letter.",
    )
    truncated: Literal["keep", "mask"] = key(
        "keep",
        "Truncated completions",
        "keep: they train with their reward. mask: their reward counts in the group, their tokens do not train.",
    )
    reward_timeout_s: PositiveFloat = key(
        10.0, "Reward limit", "Seconds of one call of your own reward function; more is an error."
    )
    stop: StopRules = table(StopRules, "Stop rules", "When a run that goes wrong ends by itself.")


def reward_weights(value: Any) -> dict[str, float]:
    """The weight of each reward in a `reward_function`: one name, a list (weight 1 each) or a table."""
    if isinstance(value, Mapping):
        return {str(name): float(weight) for name, weight in value.items()}
    return dict.fromkeys([value] if isinstance(value, str) else value, 1.0)
