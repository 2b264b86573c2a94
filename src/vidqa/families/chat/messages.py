"""Makes the messages that a chat template reads from a record: system prompt, response mode, media places."""

from __future__ import annotations

import re

from vidqa.data.reasoning import split_thinking
from vidqa.data.record import Record, Turn
from vidqa.families.chat.problems import RESPONSE_MODE
from vidqa.families.chat.template import Message

RESPONSE_MODES = ("answer", "think", "hybrid")
ANSWER = re.compile(r"\s*<answer>(.*?)</answer>\s*", re.DOTALL)


def messages_of(record: Record, system_prompt: str, response_mode: str, *, for_generation: bool) -> list[Message]:
    """The record's turns as role/content messages.

    A turn without media has its text as content, one with media a list of parts. `system_prompt` stands where the
    record has no system turn. With `for_generation` the last assistant turn is left out, since the model writes it.
    """
    if response_mode not in RESPONSE_MODES:
        raise ValueError(f"response_mode is {response_mode!r}; known: {', '.join(RESPONSE_MODES)}")
    turns = list(record.turns)
    if for_generation and turns and turns[-1].role == "assistant":
        turns.pop()
    if system_prompt and (not turns or turns[0].role != "system"):
        turns.insert(0, Turn("system", (system_prompt,)))
    learned = not for_generation
    return [{"role": turn.role, "content": _content(record, turn, response_mode, learned)} for turn in turns]


def _content(record: Record, turn: Turn, response_mode: str, learned: bool) -> str | list[dict[str, str]]:
    if turn.role == "assistant":
        return _answer(record, turn.text, response_mode, learned and turn.learned)
    if all(isinstance(part, str) for part in turn.parts):
        return turn.text
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": record.media[part].kind}
        for part in turn.parts
    ]


def _answer(record: Record, text: str, response_mode: str, learned: bool) -> str:
    """What the assistant says in a response mode: `answer` without its reasoning, else as written."""
    thinking, plain = split_thinking(text)
    if response_mode == "think" and learned and not thinking:
        message = f"response_mode is think, and the answer begins with {text[:40]!r}"
        raise RESPONSE_MODE.error(record.source or record.id, message)
    if response_mode != "answer":
        return text
    wrapped = ANSWER.fullmatch(plain)
    plain = wrapped.group(1).strip() if wrapped else plain
    if learned and not plain.strip():
        message = f"response_mode is answer, and there is nothing but reasoning: {text[:40]!r}"
        raise RESPONSE_MODE.error(record.source or record.id, message)
    return plain
