"""The reward of a completion: the weighted sum of the rewards that a spec names, and what is wrong with questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vidqa.contract.problem import Problem
from vidqa.dataset.record import Record
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.options import options_of
from vidqa.evaluation.text import normalise
from vidqa.rewards.builtin import BUILT_IN, Completion, overlong
from vidqa.rewards.labels import label_of
from vidqa.rewards.problems import REWARD_LABELS, REWARD_REFERENCE
from vidqa.rewards.user import UserReward
from vidqa.spec.grpo_rules import REWARDS, reward_weights

OVERLONG = "overlong"
NUMERIC = ("number", "distance")


@dataclass(frozen=True)
class Reward:
    """`total` is the weighted sum; `parts` are the rewards before their weights, and those a user's function names."""

    total: float
    parts: Mapping[str, float]


class Rewards:
    """The rewards of a `reward_function`, with the overlong penalty of a policy table. A context: it ends processes."""

    def __init__(self, reward_function: Any, policy: Any, longest: int, timeout_s: float) -> None:
        """`longest` is the most tokens of a completion. Raises REWARD_FUNCTION for a file that is not there."""
        self.weights = reward_weights(reward_function)
        self.overlong, self.longest = policy.overlong_reward, longest
        self.users = {name: UserReward(name, timeout_s) for name in self.weights if name not in REWARDS}

    def __enter__(self) -> Rewards:
        return self

    def __exit__(self, *_: object) -> None:
        for user in self.users.values():
            user.close()

    def __call__(self, completion: Completion) -> Reward:
        """Raises REWARD_FUNCTION, REWARD_TIMEOUT for a function of the user's own."""
        total, parts = 0.0, dict[str, float]()
        for name, weight in self.weights.items():
            if name in self.users:
                value, more = self.users[name](completion)
                parts |= {self.users[name].function: value, **more}
            else:
                value = BUILT_IN[REWARDS[name]](completion)
                parts[REWARDS[name]] = value
            total += weight * value
        if self.overlong.enable_overlong_penalty:
            settings = (self.longest, self.overlong.buffer_length, self.overlong.penalty_factor)
            parts[OVERLONG] = overlong(len(completion.token_ids), *settings)
            total += parts[OVERLONG]
        return Reward(total, parts)


def question_problems(records: Sequence[Record], reward_function: Any, *, balanced: bool) -> list[Problem]:
    """REWARD_REFERENCE for references that no completion can meet, REWARD_LABELS where labels cannot be balanced."""
    names = {REWARDS.get(name, name) for name in reward_weights(reward_function)}
    problems = []
    for record in records:
        if message := _unmet(record, names):
            problems.append(REWARD_REFERENCE.at(f"{record.source} (id {record.id})", message))
    if balanced and len({label_of(record) for record in records}) < 2:
        label = label_of(records[0]) if records else ""
        message = f"engine.balance is label, and every one of {len(records)} questions has the label {label!r}"
        problems.append(REWARD_LABELS.at("engine.balance", message))
    return problems


def _unmet(record: Record, names: set[str]) -> str:
    """Why no completion can meet the reference of a record under these rewards; empty where one can."""
    needs = names & {"accuracy", "number", "distance", "token_f1"}
    if not needs:
        return ""
    if not record.answer:
        return "it has no reference answer"
    parsed = parse_expected(record.answer, record.question)
    if parsed.status != "parsed" or not parsed.answer:
        return f"the reference {record.answer[:60]!r} cannot be parsed"
    if needs & set(NUMERIC) and parsed.kind != "number":
        return f"the reference {record.answer[:60]!r} is no number, and the reward is {', '.join(sorted(needs))}"
    options = options_of(record.question)
    listed = {*options, *map(normalise, options.values())}
    if "accuracy" in needs and options and parsed.answer not in listed:
        return f"the reference {record.answer[:60]!r} is none of the options {', '.join(options)}"
    return ""
