"""Prompt forms: multiple choice with lettered options and a letter as the answer, and yes/no with yes or no."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from vidqa.data.conversation import split_thinking
from vidqa.data.record import Record
from vidqa.datatools.problems import PROMPT
from vidqa.evaluation.choices import options_of

ASK_LETTER = "Answer with the letter of the right option."
ASK_YES_NO = "Answer with yes or no."
MOST_OPTIONS = 26
LETTER = re.compile(r"[(\[]?([A-Za-z])[)\].:]{0,2}")
YES_NO = re.compile(r"(yes|true|1|no|false|0)\W{0,2}", re.IGNORECASE)
ASKS_YES_NO = re.compile(r"\byes\s*(?:or|/)\s*no\b", re.IGNORECASE)


def split_options(value: Any) -> list[str]:
    """The options of a field: a list, or a text with | between them; empty where it is neither."""
    if isinstance(value, str):
        value = value.split("|")
    if not isinstance(value, list) or not all(isinstance(option, str) for option in value):
        return []
    return [option.strip() for option in value if option.strip()]


def as_mcq(record: Record, options: list[str]) -> Record | None:
    """The record's last question with lettered options and its answer as a letter; None where it has no options.

    Options come from the field, else from the question itself. Raises DATATOOLS_PROMPT.
    """
    listed = options_of(record.question)
    options = options or list(listed.values())
    if not 2 <= len(options) <= MOST_OPTIONS:
        return None
    letters = [chr(ord("A") + at) for at in range(len(options))]
    thinking, answer = split_thinking(record.answer)
    letter = _letter(answer, options, letters)
    if letter is None:
        message = f"the answer {answer[:60]!r} is not one of {', '.join(map(repr, options))[:200]}"
        raise PROMPT.error(f"{record.source} (id {record.id})", message)
    lines = [] if listed else [f"({name}) {option}" for name, option in zip(letters, options, strict=True)]
    lines += [] if ASK_LETTER in record.question else [ASK_LETTER]
    return _rewritten(record, lines, thinking + letter)


def as_yes_no(record: Record) -> Record | None:
    """The record with an instruction and the answer Yes or No; None where its answer says more, or something else."""
    thinking, answer = split_thinking(record.answer)
    match = YES_NO.fullmatch(answer)
    if not match:
        return None
    lines = [] if ASKS_YES_NO.search(record.question) else [ASK_YES_NO]
    return _rewritten(record, lines, thinking + ("Yes" if match[1].lower() in ("yes", "true", "1") else "No"))


def _letter(answer: str, options: list[str], letters: list[str]) -> str | None:
    """An option's own text comes first: an option may be called "B"."""
    same = [letter for letter, option in zip(letters, options, strict=True) if option.casefold() == answer.casefold()]
    if same:
        return same[0] if len(same) == 1 else None
    match = LETTER.fullmatch(answer)
    return match[1].upper() if match and match[1].upper() in letters else None


def _rewritten(record: Record, lines: list[str], answer: str) -> Record:
    """`lines` at the end of the last user turn, and another text in the last assistant turn."""
    turns = list(record.turns)
    at = max(at for at, turn in enumerate(turns) if turn.role == "user")
    parts = list(turns[at].parts)
    if lines:
        last = parts.pop() if isinstance(parts[-1], str) else ""
        parts.append("\n".join(filter(None, [str(last).rstrip(), *lines])))
    turns[at] = replace(turns[at], parts=tuple(parts))
    at = max(at for at, turn in enumerate(turns) if turn.role == "assistant")
    turns[at] = replace(turns[at], parts=(answer,))
    return replace(record, turns=tuple(turns))


def apply(record: Record, fields: dict[str, Any], forms: list[str]) -> tuple[Record, str | None]:
    """(the record in the first of the forms that fits it, that form); options that were used leave `fields`."""
    for form in forms:
        formed = as_mcq(record, split_options(fields.get("options"))) if form == "mcq" else as_yes_no(record)
        if formed is not None:
            if form == "mcq":
                fields.pop("options", None)
            return formed, form
    return record, None
