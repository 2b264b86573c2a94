"""Constrained answers: JSON of a schema, or one of given choices. llguidance computes the allowed tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from vidqa.contract._optional import require
from vidqa.families.chat import Chat
from vidqa.serving.problems import CONSTRAINT
from vidqa.serving.schema import LONGEST_FORM, ChatRequest
from vidqa.serving.transcript import CLOSES

OBJECT_FORM = {"whitespace_flexible": False}  # else a model may write blanks forever


class Grammars:
    """Makes the masks of requests, for one tokenizer."""

    def __init__(self, chat: Chat) -> None:
        self.guidance = require("llguidance", "serve")
        self.chat = chat
        core = chat.tokens.core
        self.tokenizer = self.guidance.LLTokenizer(core.to_str(), eos_token=list(chat.eos_ids))

    def of(self, request: ChatRequest, *, thinking: bool) -> Any:
        """A factory of masks for the answers to a request; None without a constraint. Raises
        SERVE_CONSTRAINT."""
        matcher = self.guidance.LLMatcher
        if (choices := request.choices) is not None:
            if not all(choices):
                raise CONSTRAINT.error(request.form_place, "a choice is empty")
            grammar = matcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, choices))}")
        elif (schema := request.json_form) is not None:
            written = json.dumps(schema)
            if len(written) > LONGEST_FORM:
                raise CONSTRAINT.error(request.form_place, f"{len(written)} characters; {LONGEST_FORM} are taken")
            grammar = matcher.grammar_from_json_schema(schema, defaults=OBJECT_FORM)
        else:
            return None
        if wrong := matcher.validate_grammar(grammar, self.tokenizer):
            raise CONSTRAINT.error(request.form_place, wrong.splitlines()[0][:300])
        return lambda: Form(matcher(self.tokenizer, grammar), self, thinking=thinking)


class Form:
    """The mask of one answer. Thinking opened by the prompt is unconstrained."""

    def __init__(self, matcher: Any, grammars: Grammars, *, thinking: bool) -> None:
        self.matcher, self.grammars, self.thinking = matcher, grammars, thinking
        self.seen = 0

    def allowed(self, token_ids: Sequence[int]) -> np.ndarray:
        """Bool [V]. When the form is complete, only the end of the turn is allowed."""
        chat, size = self.grammars.chat, self.grammars.tokenizer.vocab_size
        if self.thinking:
            ends = chat.tokens.core.token_to_id(CLOSES)
            if ends is None or ends not in token_ids:
                return np.ones(size, bool)
            self.thinking, self.seen = False, list(token_ids).index(ends) + 1
        self.matcher.consume_tokens(list(token_ids[self.seen :]))
        self.seen = len(token_ids)
        mask = np.zeros(size, bool)
        if not (self.matcher.is_error() or self.matcher.is_stopped()):
            packed = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(packed, count=size, bitorder="little").astype(bool)
        if not mask.any():
            mask[list(chat.eos_ids)] = True
        return mask
