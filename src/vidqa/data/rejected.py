"""The wrong answer of a preference pair: a text, a turn of the assistant, or a list of one turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SPEAKERS = ("gpt", "assistant")


def rejected_of(row: Mapping[str, Any], wrong_type: Callable[[str, str, object, str], None]) -> str | None:
    """The text of a record's field `rejected`; None without one, or after `wrong_type` was called for no answer."""
    value = row.get("rejected")
    if value in (None, "", [], {}):
        return None
    text = _text(value[0] if isinstance(value, list) and len(value) == 1 else value)
    if text is None:
        wrong_type("rejected", "the wrong answer in place of the last turn", value, '"rejected": "No"')
        return None
    return text.strip() or None


def _text(turn: Any) -> str | None:
    if isinstance(turn, str):
        turn = {"content": turn}
    if not isinstance(turn, dict) or turn.get("from", turn.get("role", "assistant")) not in SPEAKERS:
        return None
    content = turn.get("value", turn.get("content"))
    parts = content if isinstance(content, list) else [content]
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join(texts) if all(isinstance(text, str) and _is_valid(text) for text in texts) else None


def _is_valid(text: str) -> bool:
    """Half a surrogate pair is no text that a file or a tokenizer can take."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
