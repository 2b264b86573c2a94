"""The reward of a completion, what is wrong with questions, their labels, and their options in another order."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vidqa.core.problem import Problem
from vidqa.data.record import Record, Turn
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.options import options_of
from vidqa.evaluation.problems import REWARD_LABELS, REWARD_REFERENCE
from vidqa.evaluation.rewards.builtin import BUILT_IN, Completion, overlong
from vidqa.evaluation.rewards.user import UserReward
from vidqa.evaluation.text import normalise
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
        """`longest` is the most tokens of a completion. Raises METRIC_FUNCTION for a file that is not there."""
        self.weights = reward_weights(reward_function)
        self.overlong, self.longest = policy.overlong_reward, longest
        self.users = {name: UserReward(name, timeout_s) for name in self.weights if name not in REWARDS}

    def __enter__(self) -> Rewards:
        return self

    def __exit__(self, *_: object) -> None:
        for user in self.users.values():
            user.close()

    def __call__(self, completion: Completion) -> Reward:
        """Raises METRIC_FUNCTION for a function of the user's own."""
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


def label_of(record: Record) -> str:
    """The class of the right answer: a letter, yes or no, a number, else the normalised text."""
    return parse_expected(record.answer, record.question).answer


def shuffled_options(record: Record, seed: str) -> Record:
    """The record with the texts of its options permuted, a function of `seed`, and its reference with them. A question
    without options, or whose reference is no letter of them, stays as it is."""
    options = _options(record)
    parsed = parse_expected(record.answer, record.question)
    if parsed.kind != "letter" or parsed.answer not in options or len(set(options.values())) < len(options):
        return record
    letters = list(options)
    order = letters.copy()
    random.Random(seed).shuffle(order)  # letter letters[i] gets the text that stood at order[i]
    texts = {letter: options[source] for letter, source in zip(letters, order, strict=True)}
    right = letters[order.index(parsed.answer)]
    asking = max(number for number, turn in enumerate(record.turns) if turn.role == "user")
    answering = max(number for number, turn in enumerate(record.turns) if turn.role == "assistant")
    turns = list(record.turns)
    turns[asking] = _with_options(turns[asking], options, texts)
    turns[answering] = _with_answer(turns[answering], parsed.answer, right, options[parsed.answer])
    shuffled = replace(record, turns=tuple(turns))
    consistent = _options(shuffled) == texts and label_of(shuffled) == right
    return shuffled if consistent else record


def _options(record: Record) -> dict[str, str]:
    return {letter: text.strip() for letter, text in options_of(record.question).items()}


def _with_options(turn: Turn, options: dict[str, str], texts: dict[str, str]) -> Turn:
    """The turn with the text of each option replaced where it stands behind its letter."""

    def replaced(part: str) -> str:
        for letter, text in options.items():  # marked first: the text of one option may hold that of another
            mark = rf"(?<![A-Za-z])({letter}|{letter.lower()})([).:]\s*){re.escape(text)}"
            part = re.sub(mark, f"\\g<1>\\g<2>\x01{letter}\x01", part, count=1)
        for letter, text in texts.items():
            part = part.replace(f"\x01{letter}\x01", text)
        return part

    return replace(turn, parts=tuple(replaced(part) if isinstance(part, str) else part for part in turn.parts))


def _with_answer(turn: Turn, before: str, after: str, text: str) -> Turn:
    """The turn with another letter: alone, or with the option's text behind it. Reasoning in front of it, which may
    name letters, is left out: it is never shown to the model."""
    behind = f". {text}" if text and text in turn.text and turn.text.strip() != text else ""
    return replace(turn, parts=(f"{after}{behind}",))
