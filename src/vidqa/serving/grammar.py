"""Constrained answers: JSON of a schema, or one of given choices. llguidance computes the allowed tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from vidqa.core._optional import require
from vidqa.core.problem import Problem
from vidqa.families.chat import Chat
from vidqa.serving.detokenizer import CLOSES
from vidqa.serving.problems import REQUEST
from vidqa.serving.schema import LONGEST_FORM, ChatRequest

OBJECT_FORM = {"whitespace_flexible": False}  # otherwise a model may write whitespace forever
# The compile time grows with the square of the properties, and with the multiples that the automaton has to count.
MOST_PROPERTIES = 1000
DEEPEST = 64  # nesting depth of objects and lists in a schema
MOST_MULTIPLES = 10_000
LONGEST_MESSAGE = 300  # characters


class Grammars:
    """Compiles the grammars of requests, for one tokenizer."""

    def __init__(self, chat: Chat) -> None:
        self.guidance = require("llguidance", "serve")
        self.chat = chat
        core = chat.tokens.core
        self.tokenizer = self.guidance.LLTokenizer(core.to_str(), eos_token=list(chat.eos_ids))

    def forms(self, request: ChatRequest, count: int, *, thinking: bool) -> list[Form] | list[None]:
        """The constraints of `count` answers to a request; None without a grammar. It is compiled once, which may take
        a second. Raises SERVE_REQUEST."""
        if (grammar := self._grammar(request)) is None:
            return [None] * count
        matcher = self.guidance.LLMatcher(self.tokenizer, grammar)
        if not matcher.is_error():
            matcher.compute_bitmask()  # detects grammars that are too large
        if matcher.is_error():
            raise REQUEST.error(request.form_place, _first_line(matcher.get_error()))
        return [Form(matcher.deep_copy(), self, request.form_place, thinking=thinking) for _ in range(count)]

    def _grammar(self, request: ChatRequest) -> str | None:
        if (form := request.choices or request.json_form) is None:
            return None
        written = json.dumps(form)
        if len(written) > LONGEST_FORM:
            raise REQUEST.error(request.form_place, f"{len(written)} characters; at most {LONGEST_FORM} allowed")
        unescaped = written.replace("\\", "")  # a pattern may escape the bars
        if token := next((token for token in self.chat.tokens.special if token in unescaped), ""):
            message = f"it has the special token {token}, which cannot be part of an answer"
            raise REQUEST.error(request.form_place, message)
        if isinstance(form, list):
            if not all(form):
                raise REQUEST.error(request.form_place, "a choice is empty")
            return str(self.guidance.LLMatcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, form))}"))
        if wrong := _too_complex(form):
            raise REQUEST.error(request.form_place, wrong, "Use a smaller schema.")
        try:
            return str(self.guidance.LLMatcher.grammar_from_json_schema(written, defaults=OBJECT_FORM))
        except ValueError as refused:
            raise REQUEST.error(request.form_place, _first_line(str(refused))) from refused


class Form:
    """The constraint of one answer. Thinking that the prompt starts is unconstrained. `problem` is set if the grammar
    becomes too complex during an answer, which then ends."""

    def __init__(self, matcher: Any, grammars: Grammars, place: str, *, thinking: bool) -> None:
        self.matcher, self.grammars, self.place, self.thinking = matcher, grammars, place, thinking
        self.consumed = 0
        self.problem: Problem | None = None

    def allowed(self, token_ids: Sequence[int]) -> np.ndarray:
        """Allowed tokens, bool [V]. When the grammar is complete, only the end of the turn is allowed."""
        chat, size = self.grammars.chat, self.grammars.tokenizer.vocab_size
        if self.thinking:
            ends = chat.tokens.core.token_to_id(CLOSES)
            if ends is None or ends not in token_ids:
                return np.ones(size, bool)
            self.thinking, self.consumed = False, list(token_ids).index(ends) + 1
        self.matcher.consume_tokens(list(token_ids[self.consumed :]))
        self.consumed = len(token_ids)
        mask = np.zeros(size, bool)
        if not (self.matcher.is_error() or self.matcher.is_stopped()):
            packed = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(packed, count=size, bitorder="little").astype(bool)
        if self.matcher.is_error():
            self.problem = REQUEST.at(self.place, _first_line(self.matcher.get_error()))
            mask[:] = False
        if not mask.any():
            mask[list(chat.eos_ids)] = True
        return mask


def _too_complex(schema: dict[str, Any]) -> str:
    """The reason why a schema would take long to compile, or ""."""
    properties, multiples = 0, set()
    level: list[Any] = [schema]
    for _ in range(DEEPEST):
        objects = [value for value in level if isinstance(value, dict)]
        for table in objects:
            named = table.get("properties")
            properties += len(named) if isinstance(named, dict) else 0
            step = table.get("multipleOf")
            if isinstance(step, (int, float)) and not isinstance(step, bool) and 0 < step < math.inf:
                multiples.add(Fraction(str(step)).numerator)
        if properties > MOST_PROPERTIES:
            return f"more than {MOST_PROPERTIES} properties"
        lists = [value for value in level if isinstance(value, list)]
        level = [value for table in objects for value in table.values()] + [value for row in lists for value in row]
        if not level:
            common = math.lcm(*multiples)
            return f"multipleOf has {MOST_MULTIPLES} at most, also as the common multiple" * (common > MOST_MULTIPLES)
    return f"deeper than {DEEPEST} levels"


def _first_line(message: str) -> str:
    return message.split("\n", 1)[0][:LONGEST_MESSAGE]
