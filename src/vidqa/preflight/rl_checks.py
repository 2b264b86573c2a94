"""Reinforcement learning: references that a completion can meet, rewards that can be loaded, the size of a step."""

from __future__ import annotations

from collections.abc import Sequence

from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset.record import Record
from vidqa.preflight._base import Context, Skip
from vidqa.rewards import Completion, Rewards, question_problems
from vidqa.rewards.problems import REWARD_FORMAT
from vidqa.spec import effective_batch
from vidqa.spec.grpo_rules import reward_weights
from vidqa.spec.models import GrpoSpec


def rewards(context: Context) -> list[Problem]:
    """Every question can be rewarded, and a reward function of the user's own gives a number for the first one."""
    spec = context.spec
    if not isinstance(spec, GrpoSpec):
        raise Skip("only reinforcement learning rewards completions")
    records = next(part.records for part in context.sets if part.name == "train")
    policy, balanced = spec.train.train_policy, spec.engine.balance == "label"
    context.facts["rollout"] = {
        "questions_per_step": effective_batch(spec),
        "completions_per_step": effective_batch(spec) * spec.rollout.n_generation,
        "completions_per_question": spec.rollout.n_generation,
        "longest_completion": spec.rollout.max_response_length,
    }
    problems = [*question_problems(records, policy.reward_function, balanced=balanced), *_format(spec, records)]
    try:
        longest, timeout_s = spec.rollout.max_response_length, spec.engine.reward_timeout_s
        with Rewards(policy.reward_function, policy, longest, timeout_s) as loaded:
            for record in records[:1] if loaded.users else []:
                loaded(Completion(record, record.answer, tuple(record.answer.encode()) or (0,)))  # for ids of tokens
    except ProblemError as broken:
        problems += broken.problems
    return problems


def _format(spec: GrpoSpec, records: Sequence[Record]) -> list[Problem]:
    """A warning where a format is rewarded that neither the prompts ask for nor the references have."""
    policy = spec.train.train_policy
    if not {"format", "format_strict"} & reward_weights(policy.reward_function).keys():
        return []
    shown = [spec.custom.system_prompt, *(text for record in records for text in (record.question, record.answer))]
    if any("<answer>" in text for text in shown):
        return []
    message = "reward_function has format, and neither custom.system_prompt nor any record says <answer>"
    return [REWARD_FORMAT.at("train.train_policy.reward_function", message, severity="warning")]
