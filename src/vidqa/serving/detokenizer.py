"""Streaming detokenizer: converts tokens to text, ends at stop texts, and separates thinking from the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vidqa.families.chat import Chat

OPENS, CLOSES = "<think>", "</think>"
UNFINISHED = "\ufffd"  # decoded from an incomplete character


@dataclass(slots=True)
class Piece:
    """A part of an answer: its content, its reasoning, and its tokens with log-probabilities."""

    content: str = ""
    reasoning: str = ""
    tokens: list[tuple[int, float]] = field(default_factory=list)


class Detokenizer:
    """The text of one answer. A suffix that may be the start of a stop text is held back."""

    def __init__(self, chat: Chat, stops: Sequence[str], *, thinking: bool, logprobs: bool) -> None:
        self.chat, self.stops, self.logprobs = chat, stops, logprobs
        self.count = 0  # tokens, including the one that ends the turn
        self.stopped = False  # by a stop text
        self._ids: list[int] = []
        self._window = (0, 0)  # the tokens of the last text, which affect the decoding of the next ones
        self._raw = ""  # all text so far
        self._pending = ""
        self._thought = _ThinkingSplitter(thinking)
        self._tokens: list[tuple[int, float]] = []

    def take(self, token_id: int, logprob: float) -> Piece | None:
        """Add a token. Returns the text that is now final."""
        if self.stopped:
            return None
        self.count += 1
        if token_id in self.chat.eos_ids:
            return None
        if self.logprobs:
            self._tokens.append((token_id, logprob if math.isfinite(logprob) else -9999.0))
        self._ids.append(token_id)
        new = self._new_text()
        return self._piece(new) if new else None

    def _new_text(self) -> str:
        """The new text; empty while the tokens end inside a character."""
        first, last = self._window
        before, now = self.chat.decode(self._ids[first:last]), self.chat.decode(self._ids[first:])
        if len(now) <= len(before) or now.endswith(UNFINISHED):
            return ""
        self._window = (last, len(self._ids))
        return now[len(before) :]

    def end(self) -> Piece:
        """The remaining held-back text, after the last token."""
        whole = self.chat.decode(self._ids)
        rest = whole[len(self._raw) :] if whole.startswith(self._raw) and not self.stopped else ""
        piece = self._piece(rest, last=True) or Piece()
        content, reasoning = self._thought.end()
        return Piece(piece.content + content, piece.reasoning + reasoning, piece.tokens)

    def _piece(self, new: str, *, last: bool = False) -> Piece | None:
        self._raw += new
        sure = self._up_to_stop(new, last)
        content, reasoning = self._thought.take(sure)
        if not (content or reasoning or last):
            return None
        tokens, self._tokens = self._tokens, []
        return Piece(content, reasoning, tokens)

    def _up_to_stop(self, new: str, last: bool) -> str:
        text, self._pending = self._pending + new, ""
        places = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return text[: min(places)]
        if not last:
            held_back = _partial_stop(text, self.stops)
            text, self._pending = text[: len(text) - held_back], text[len(text) - held_back :]
        return text


class _ThinkingSplitter:
    """Separates thinking from the answer; `inside` if the prompt ends inside the thinking."""

    def __init__(self, inside: bool) -> None:
        self.state = "thinking" if inside else "start"
        self.held = ""

    def take(self, text: str) -> tuple[str, str]:
        """The final (content, reasoning)."""
        text, self.held = self.held + text, ""
        reasoning = ""
        if self.state == "start" and text:
            begun = text.lstrip()
            if begun.startswith(OPENS):
                self.state, text = "thinking", begun[len(OPENS) :]
            elif OPENS.startswith(begun):
                self.held = text
                return "", ""
            else:
                self.state = "answer"
        if self.state == "thinking":
            at = text.find(CLOSES)
            if at < 0:
                held_back = _partial_stop(text, [CLOSES])
                self.held = text[len(text) - held_back :]
                return "", text[: len(text) - held_back]
            reasoning, text, self.state = text[:at], text[at + len(CLOSES) :], "between"
        if self.state == "between":
            text = text.lstrip()
            self.state = "answer" if text else "between"
        return text, reasoning

    def end(self) -> tuple[str, str]:
        return ("", self.held) if self.state == "thinking" else (self.held, "")


def _partial_stop(text: str, words: Sequence[str]) -> int:
    """The number of characters at the end of `text` that may be the start of one of the words."""
    longest = max((len(word) for word in words), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(word.startswith(text[-length:]) for word in words):
            return length
    return 0
