"""Responses as OpenAI's objects, with an additional table `vidqa` about the model's input."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vidqa.core.cli import FILE_REFUSED
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.planning.requests import Result, TopLogprobs
from vidqa.serving import problems as codes
from vidqa.serving.detokenizer import Piece
from vidqa.serving.handler import Answer, Answers, RequestHandler
from vidqa.serving.schema import ChatRequest

STATUS = {
    codes.UNAUTHORIZED.name: 401,
    codes.MEDIA_REFUSED.name: 403,
    codes.NOT_FOUND.name: 404,
    codes.TOO_LARGE.name: 413,
    codes.BUSY.name: 429,
    codes.STOPPING.name: 503,
    codes.FAILED.name: 503,
    FILE_REFUSED.name: 503,
}
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ResponseWriter:
    """OpenAI's objects for the answers to one request."""

    model: str
    request: ChatRequest
    answers: Answers
    handler: RequestHandler
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self) -> dict[str, Any]:
        """A chat.completion."""
        tables = [self._choice(number, answer) for number, answer in enumerate(self.answers.choices)]
        facts = {**self.input_facts(), "truncated": any(table["finish_reason"] == "length" for table in tables)}
        return self._object("chat.completion", tables, usage=self._usage(), vidqa=facts)

    async def events(
        self, first: tuple[int, Piece | Result], others: AsyncIterator[tuple[int, Piece | Result]]
    ) -> AsyncIterator[bytes]:
        """The server-sent events of a stream."""
        for number in range(len(self.answers.choices)):
            role = self._chunk(number, {"role": "assistant", "content": ""})
            yield event(role if number else {**role, "vidqa": self.input_facts()})
        try:
            for chunk in self._chunks(*first):
                yield event(chunk)
            async for number, item in others:
                for chunk in self._chunks(number, item):
                    yield event(chunk)
        except ProblemError as failed:
            yield event(error_response(failed.problems)[1])
            return
        if self.request.stream_options and self.request.stream_options.include_usage:
            yield event(self._object("chat.completion.chunk", [], usage=self._usage()))
        yield b"data: [DONE]\n\n"

    def input_facts(self) -> dict[str, Any]:
        """The table `vidqa`: the model's input."""
        sample = self.answers.sample
        media = [
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
        facts = {"media": media, "prompt_tokens": sample.length, "media_tokens": sample.media_tokens}
        return {**facts, "max_tokens": self.answers.max_tokens, "context_tokens": self.handler.backend.longest}

    def _choice(self, number: int, answer: Answer) -> dict[str, Any]:
        assert answer.result
        content, reasoning = ("".join(getattr(p, name) for p in answer.pieces) for name in ("content", "reasoning"))
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning.strip()
        tokens = [token for piece in answer.pieces for token in piece.tokens]
        logprobs = self._logprobs(tokens, answer.result.top_logprobs)
        return {
            "index": number,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": answer.result.finish_reason,
        }

    def _chunks(self, number: int, item: Piece | Result) -> list[dict[str, Any]]:
        if isinstance(item, Result):
            return [self._chunk(number, {}, reason=item.finish_reason)]
        texts = {"reasoning_content": item.reasoning, "content": item.content}
        delta = {name: text for name, text in texts.items() if text}
        logprobs = self._logprobs(item.tokens)
        return [self._chunk(number, delta, logprobs)] if delta or (logprobs and logprobs["content"]) else []

    def _chunk(self, number: int, delta: dict[str, Any], logprobs: Any = None, reason: Any = None) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        table = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**table, "choices": choices, **more}

    def _usage(self) -> dict[str, int]:
        prompt, answered = self.answers.sample.length, sum(answer.detokenizer.count for answer in self.answers.choices)
        return {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}

    def _logprobs(self, tokens: Sequence[tuple[int, float]], top: Sequence[TopLogprobs] = ()) -> dict[str, Any] | None:
        """Text, bytes and log-probability of each token and of the likeliest at its position; None unless requested."""
        if not self.request.logprobs:
            return None
        ranked = [*top, *[()] * len(tokens)]
        rows = [
            {**self._token(*token), "top_logprobs": [self._token(*other) for other in others]}
            for token, others in zip(tokens, ranked, strict=False)
        ]
        return {"content": rows}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.handler.grammars.tokenizer.decode_bytes([token_id])
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def event(table: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def status_of(problem: Problem) -> int:
    """The HTTP status of a problem: by its code, else by its exit code."""
    if problem.code in STATUS:
        return STATUS[problem.code]
    return {Exit.INPUT: 400, Exit.USAGE: 400, Exit.NOT_DONE: 503}.get(Exit(problem.exit_code), 500)


def error_response(problems: Sequence[Problem], status: int | None = None) -> tuple[int, dict[str, Any]]:
    """The status and the body for problems; the first one is the error, and all are listed."""
    first = problems[0]
    status = status or status_of(first)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    table = {"message": first.message, "type": kind, "param": first.where, "code": first.code, "remedy": first.remedy}
    others = [{"message": problem.message, "param": problem.where, "code": problem.code} for problem in problems[1:]]
    return status, {"error": {**table, **({"others": others} if others else {})}}
