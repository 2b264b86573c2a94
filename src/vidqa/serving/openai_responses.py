"""Responses as OpenAI's objects, with a table `vidqa` about the input of the model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from vidqa.contract.problem import Exit, Problem
from vidqa.families.chat import Chat
from vidqa.planning.requests import TopLogprobs
from vidqa.planning.samples import Sample
from vidqa.serving import problems as codes

STATUS = {
    codes.UNAUTHORIZED.name: 401,
    codes.MEDIA_REFUSED.name: 403,
    codes.NOT_FOUND.name: 404,
    codes.BODY_TOO_LARGE.name: 413,
    codes.MEDIA_TOO_LARGE.name: 413,
    codes.BUSY.name: 429,
    codes.STOPPING.name: 503,
    codes.FAILED.name: 503,
}
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(slots=True)
class Choice:
    """One answer so far. `reason` is empty until it ends."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tokens: list[tuple[int, float]] = field(default_factory=list)
    top: Sequence[TopLogprobs] = ()
    reason: str = ""
    count: int = 0


@dataclass(frozen=True)
class Head:
    """The common fields of all objects of one answer."""

    id: str
    created: int
    model: str

    def object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices, **more}


def input_facts(sample: Sample, max_tokens: int, longest: int) -> dict[str, Any]:
    """The table `vidqa`: the input of the model."""
    shown = [
        {
            "kind": plan.kind,
            "frames": len(plan.indices),
            "timestamps_s": [round(time_s, 3) for time_s in plan.times_s] if plan.kind == "video" else [],
            "width": plan.width,
            "height": plan.height,
            "tokens": plan.tokens,
        }
        for plan in sample.plans
    ]
    facts = {"prompt_tokens": sample.length, "media_tokens": sample.media_tokens}
    return {"media": shown, **facts, "max_tokens": max_tokens, "context_tokens": longest}


def whole(
    head: Head, choices: Sequence[Choice], chat: Chat, facts: dict[str, Any], *, logprobs: bool
) -> dict[str, Any]:
    """A chat.completion."""
    tables = []
    for number, choice in enumerate(choices):
        message: dict[str, Any] = {"role": "assistant", "content": "".join(choice.content), "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning).strip()
        words = {"content": logprobs_of(choice.tokens, choice.top, chat)} if logprobs else None
        tables.append({"index": number, "message": message, "logprobs": words, "finish_reason": choice.reason})
    truncated = any(choice.reason == "length" for choice in choices)
    usage = usage_of(facts["prompt_tokens"], choices)
    return head.object("chat.completion", tables, usage=usage, vidqa={**facts, "truncated": truncated})


def part(
    head: Head, number: int, delta: dict[str, Any], words: Any = None, reason: str | None = None
) -> dict[str, Any]:
    """A chat.completion.chunk of one choice."""
    choice = {"index": number, "delta": delta, "logprobs": words, "finish_reason": reason}
    return head.object("chat.completion.chunk", [choice])


def usage_of(prompt: int, choices: Sequence[Choice]) -> dict[str, int]:
    answered = sum(choice.count for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}


def logprobs_of(tokens: Iterable[tuple[int, float]], top: Sequence[TopLogprobs], chat: Chat) -> list[dict[str, Any]]:
    """The text, bytes and log-probability of each token, and of the likeliest ones at its place."""
    return [
        {**_token(chat, *token), "top_logprobs": [_token(chat, *other) for other in (top[at] if at < len(top) else ())]}
        for at, token in enumerate(tokens)
    ]


def _token(chat: Chat, token_id: int, logprob: float) -> dict[str, Any]:
    data = token_bytes(chat, token_id)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def token_bytes(chat: Chat, token_id: int) -> bytes:
    """The bytes of a token of a byte-level vocabulary; of an added token, its text."""
    text = chat.tokens.text_of(token_id)
    letters = _letters()
    if all(letter in letters for letter in text):
        return bytes(letters[letter] for letter in text)
    return text.encode()


@cache
def _letters() -> dict[str, int]:
    """The letters of bytes in a byte-level vocabulary: printable bytes as they are, others from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


def status_of(problem: Problem) -> int:
    """The HTTP status of a problem: by its code, else by its exit code."""
    if problem.code in STATUS:
        return STATUS[problem.code]
    return {Exit.INPUT: 400, Exit.USAGE: 400, Exit.NOT_DONE: 503}.get(Exit(problem.exit_code), 500)


def error(problems: Sequence[Problem], status: int | None = None) -> tuple[int, dict[str, Any]]:
    """The status and the body for problems; of several, the first is the error, and all are listed."""
    first = problems[0]
    status = status or status_of(first)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    table = {"message": first.message, "type": kind, "param": first.where, "code": first.code, "remedy": first.remedy}
    others = [{"message": problem.message, "param": problem.where, "code": problem.code} for problem in problems[1:]]
    return status, {"error": {**table, **({"others": others} if others else {})}}


def now() -> int:
    return int(time.time())
