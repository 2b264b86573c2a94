"""Rewards of completions: the evaluation's verdict, formats, distances, and user functions; and the requirements of
rewards on questions."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from vidqa.core.files import absolute
from vidqa.core.problem import Problem
from vidqa.core.user_function import UserFunction, UserFunctionError, is_number
from vidqa.data.problems import USER_FUNCTION
from vidqa.data.record import Record, Turn
from vidqa.evaluation.answers import final_answer, parse_expected
from vidqa.evaluation.choices import options_of
from vidqa.evaluation.problems import REWARD_LABELS, REWARD_REFERENCE
from vidqa.evaluation.results import make_item
from vidqa.evaluation.text import normalise, tokens
from vidqa.evaluation.text import token_f1 as bag_f1
from vidqa.spec.grpo_tables import REWARDS, reward_part, reward_weights

OVERLONG = "overlong"
NUMERIC = ("number", "distance")
START_S = 60.0  # seconds to import the user function's modules
TOLERANCE = Fraction(1, 100)  # of `number`, relative; absolute below 1
# Matches text without these tags, so that they cannot be nested or repeated inside.
_INSIDE = r"(?:(?!</?(?:think|answer)>).)*?\S(?:(?!</?(?:think|answer)>).)*"
_FORMAT = re.compile(rf"\s*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*", re.DOTALL)
_FORMAT_STRICT = re.compile(r"<think>.*?</think>\n\n<answer>.*?</answer>", re.DOTALL)


@dataclass(frozen=True)
class Completion:
    """A completion of a record's question. `token_ids` are the completion's, the stop token included; `finish_reason`
    is "stop" or "length"."""

    record: Record
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str = "stop"

    @cached_property
    def item(self) -> dict[str, Any]:
        """The judged item of an evaluation for it."""
        return make_item(self.record, self.text, self.finish_reason)

    @property
    def difference(self) -> Fraction | None:
        """|answer - reference| if both are numbers, which may be fractions ("1/3"); else None."""
        if self.item["parse_status"] != "parsed":
            return None
        try:
            return abs(Fraction(self.item["parsed_response"]) - Fraction(self.item["parsed_gt"]))
        except (ValueError, ZeroDivisionError):
            return None


def accuracy(completion: Completion) -> float:
    """1 if the evaluation judges the answer as right, else 0."""
    return float(completion.item["correct"] is True)


def format(completion: Completion) -> float:
    """1 for one <think>...</think> followed by one <answer>...</answer>, neither empty, nothing else around them."""
    return float(_FORMAT.fullmatch(completion.text) is not None)


def format_strict(completion: Completion) -> float:
    """1 for cosmos-rl's pattern, which requires an empty line between the two."""
    return float(_FORMAT_STRICT.fullmatch(completion.text) is not None)


def number(completion: Completion) -> float:
    """1 for a number within TOLERANCE of the reference."""
    if (difference := completion.difference) is None:
        return 0.0
    return float(difference <= TOLERANCE * max(Fraction(1), abs(Fraction(completion.item["parsed_gt"]))))


def distance(completion: Completion) -> float:
    """1 for the reference's number, 0.5 for one at most 1 away, else 0."""
    difference = completion.difference
    if difference is None or difference > 1:
        return 0.0
    return 0.5 if difference else 1.0


def token_f1(completion: Completion) -> float:
    """F1 of the bags of words of the answer and of the reference."""
    answer, reference = (final_answer(written).text for written in (completion.text, completion.record.answer))
    return bag_f1(answer, reference) if tokens(reference) else 0.0  # two empty texts score 0


BUILT_IN: dict[str, Callable[[Completion], float]] = {
    reward.__name__: reward for reward in (accuracy, format, format_strict, number, distance, token_f1)
}


def overlong(tokens: int, longest: int, buffer: int, factor: float) -> float:
    """The penalty of a completion of `tokens` tokens: 0 up to `longest` - `buffer`, then falling to -`factor`."""
    exceeding = tokens - (longest - buffer)
    return min(-exceeding / buffer * factor, 0.0)


class UserReward:
    """A reward function of the user; `name` is FILE.py:FUNCTION. Its process is started at the first call."""

    def __init__(self, name: str, timeout_s: float) -> None:
        file, _, self.function = name.rpartition(":")
        self.name, self.file, self.timeout_s = name, absolute(file), timeout_s
        self.process: UserFunction | None = None
        if not self.file.is_file():
            raise USER_FUNCTION.error(self.file, "there is no such Python file")

    def __call__(self, completion: Completion) -> tuple[float, dict[str, float]]:
        """The reward and its parts. Raises USER_FUNCTION with the name of the record."""
        record = completion.record
        fields = {name: getattr(record, name) for name in ("id", "question", "answer", "kind")}
        fields["media"] = [medium.path for medium in record.media]
        arguments = [completion.text, fields, list(completion.token_ids), completion.finish_reason]
        try:
            self.process = self.process or UserFunction(self.file, self.function, limit_s=START_S)
            value = self.process.call(arguments, limit_s=self.timeout_s, objects=[1])
        except UserFunctionError as failed:
            self.close()
            message = f"{self.name}: {failed.message} {failed.where}".rstrip()
            raise USER_FUNCTION.error(record.place, message) from None
        number, parts = value if isinstance(value, list) and len(value) == 2 else (value, {})
        if not isinstance(parts, dict) or not all(map(is_number, (number, *parts.values()))):
            message = f"{self.name} gave {str(value)[:100]!r}, not a number or (number, table of numbers)"
            raise USER_FUNCTION.error(record.place, message)
        return float(number), {part: float(share) for part, share in parts.items()}

    def close(self) -> None:
        """End the process and its children."""
        if self.process is not None:
            self.process.close()
        self.process = None


@dataclass(frozen=True)
class Reward:
    """A completion's reward: the weighted sum `total`; its unweighted `parts`, and the parts of user functions."""

    total: float
    parts: Mapping[str, float]


class Rewards:
    """The rewards of a `reward_function`, with the overlong penalty of a policy table. The context ends processes."""

    def __init__(self, reward_function: Any, policy: Any, longest: int, timeout_s: float) -> None:
        """Load rewards of completions of at most `longest` tokens. Raises USER_FUNCTION for a missing file."""
        self.weights = reward_weights(reward_function)
        self.overlong, self.longest = policy.overlong_reward, longest
        self.users = {name: UserReward(name, timeout_s) for name in self.weights if name not in REWARDS}
        self.names = {*map(reward_part, self.weights), *([OVERLONG] if self.overlong.enable_overlong_penalty else [])}

    def __enter__(self) -> Rewards:
        return self

    def __exit__(self, *_: object) -> None:
        for user in self.users.values():
            user.close()

    def __call__(self, completion: Completion) -> Reward:
        """The reward of a completion. Raises USER_FUNCTION for a function of the user."""
        total, parts = 0.0, dict[str, float]()
        for name, weight in self.weights.items():
            user, part = self.users.get(name), reward_part(name)
            value, more = user(completion) if user else (BUILT_IN[part](completion), {})
            if twice := sorted(more.keys() & (self.names | parts.keys())):
                message = f"{name} gave the part {twice[0]!r}, which another reward or part is named"
                raise USER_FUNCTION.error(completion.record.place, message)
            parts |= {part: value, **more}
            total += weight * value
        if self.overlong.enable_overlong_penalty:
            settings = (self.longest, self.overlong.buffer_length, self.overlong.penalty_factor)
            parts[OVERLONG] = overlong(len(completion.token_ids), *settings)
            total += parts[OVERLONG]
        return Reward(total, parts)


# --- questions ---


def question_problems(records: Sequence[Record], reward_function: Any, *, balanced: bool) -> list[Problem]:
    """REWARD_REFERENCE for references that no completion can match, REWARD_LABELS if labels cannot be balanced."""
    names = {REWARDS.get(name, name) for name in reward_weights(reward_function)}
    problems = []
    for record in records:
        if message := _unmet(record, names):
            problems.append(REWARD_REFERENCE.at(record.place, message))
    if balanced and len({label_of(record) for record in records}) < 2:
        label = label_of(records[0]) if records else ""
        message = f"engine.balance is label, and every one of {len(records)} questions has the label {label!r}"
        problems.append(REWARD_LABELS.at("engine.balance", message))
    return problems


def _unmet(record: Record, names: set[str]) -> str:
    """The reason why no completion can match the reference of a record under these rewards; empty if one can."""
    needs = names & {"accuracy", "number", "distance", "token_f1"}
    if not needs:
        return ""
    if not record.answer:
        return "it has no reference answer"
    parsed = parse_expected(record.answer, record.question)
    if parsed.status != "parsed" or not parsed.answer:
        return f"the reference {record.answer[:60]!r} cannot be parsed"
    if needs & set(NUMERIC) and parsed.kind != "number":
        return f"the reference {record.answer[:60]!r} is not a number, but the reward is {', '.join(sorted(needs))}"
    options = options_of(record.question)
    listed = {*options, *map(normalise, options.values())}
    if "accuracy" in needs and options and parsed.answer not in listed:
        return f"the reference {record.answer[:60]!r} is not one of the options {', '.join(options)}"
    return ""


def label_of(record: Record) -> str:
    """The class of the right answer: a letter, yes or no, a number, else the normalised text."""
    return parse_expected(record.answer, record.question).answer


def shuffled_options(record: Record, seed: str) -> Record:
    """Permute the texts of a record's options, as a function of `seed`, and adapt its reference. A question without
    options, or whose reference is not a letter of them, is not changed."""
    options = _options(record)
    parsed = parse_expected(record.answer, record.question)
    if parsed.kind != "letter" or parsed.answer not in options or len(set(options.values())) < len(options):
        return record
    letters = list(options)
    order = letters.copy()
    random.Random(seed).shuffle(order)  # letter letters[i] gets the text at order[i]
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
    """The turn with the text of each option replaced after its letter."""

    def replaced(part: str) -> str:
        for letter, text in options.items():  # markers first: the text of one option may contain that of another
            mark = rf"(?<![A-Za-z])({letter}|{letter.lower()})([).:]\s*){re.escape(text)}"
            part = re.sub(mark, f"\\g<1>\\g<2>\x01{letter}\x01", part, count=1)
        for letter, text in texts.items():
            part = part.replace(f"\x01{letter}\x01", text)
        return part

    return replace(turn, parts=tuple(replaced(part) if isinstance(part, str) else part for part in turn.parts))


def _with_answer(turn: Turn, before: str, after: str, text: str) -> Turn:
    """The turn with another letter: alone, or followed by the option's text. Reasoning before it, which may mention
    letters, is dropped: it is never shown to the model."""
    behind = f". {text}" if text and text in turn.text and turn.text.strip() != text else ""
    return replace(turn, parts=(f"{after}{behind}",))
