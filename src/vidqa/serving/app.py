"""The HTTP endpoints of the server: routes, access, limits."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from vidqa.contract.cli import note
from vidqa.contract.problem import Problem, ProblemError
from vidqa.planning.requests import Result
from vidqa.serving import openai_responses
from vidqa.serving._base import Limits
from vidqa.serving.handler import Answers, RequestHandler
from vidqa.serving.metrics import Figures
from vidqa.serving.openai_responses import Choice, Head
from vidqa.serving.problems import BUSY, FAILED, NOT_FOUND, UNAUTHORIZED
from vidqa.serving.schema import ChatRequest, parse_request
from vidqa.serving.uploads import Uploads

LEFT = 499  # the status of a request whose client has gone, in logs and figures alone
RETRY_S = "1"
DRAINED = 4  # times the largest body
DRAIN_S = 10.0
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(eq=False)
class ServerApp:
    """The server's state. `name` is the model's name in the API; `hosts` are the accepted host names, empty for all."""

    name: str
    handler: RequestHandler
    limits: Limits
    key: str | None
    hosts: frozenset[str] = frozenset()
    inside: int = 0  # requests
    created: int = field(default_factory=openai_responses.now)

    def __post_init__(self) -> None:
        backend = self.handler.backend
        self.figures = Figures(lambda: self.inside, lambda: backend.waiting)
        self.capacity = backend.most + self.limits.queue
        self.uploads = Uploads(self.limits, self.capacity)

    def app(self) -> Starlette:
        routes = [
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/v1/models", self._guarded(self.models), methods=["GET"]),
            Route("/v1/models/{name:path}", self._guarded(self.model), methods=["GET"]),
            Route("/v1/chat/completions", self._guarded(self.chat), methods=["POST"]),
        ]
        unknown = NOT_FOUND.at("address", "there is nothing here", "references/serving.md lists the addresses.")

        async def nothing(request: Request, failed: Exception) -> Response:
            return failure([unknown], getattr(failed, "status_code", 404))

        return Starlette(routes=routes, exception_handlers={404: nothing, 405: nothing})

    async def health(self, request: Request) -> Response:
        if self.handler.backend.is_answering:
            return JSONResponse({"status": "ok", "model": self.name})
        return failure([FAILED.at("server", "no answers are generated any more")])

    async def metrics(self, request: Request) -> Response:
        return Response(self.figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self.name:
            raise self._no_model(name)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        longest = self.handler.backend.longest
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "vidqa",
            "max_model_len": longest,
        }

    def _no_model(self, name: str) -> ProblemError:
        return NOT_FOUND.error("model", f"there is no model {name[:100]!r}; this one is {self.name!r}")

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """Check the key, turn problems into HTTP statuses, and count every request."""

        async def guarded(request: Request) -> Response:
            started = time.perf_counter()
            try:
                self._admit(request)
                response = await endpoint(request)
            except ProblemError as refused:
                response = failure(refused.problems)
                await self._drain(request)
            except ClientDisconnect:
                response = Response(status_code=LEFT)
                self.figures.left.inc()
            status = str(response.status_code)
            self.figures.requests.labels(status).inc()
            note(f"{request.method} {request.url.path} {status} {time.perf_counter() - started:.2f} s")
            return response

        return guarded

    def _admit(self, request: Request) -> None:
        if self.hosts and (request.url.hostname or "") not in self.hosts:
            message = "the request names another host than this one"
            raise UNAUTHORIZED.error("Host", message, f"Use one of {', '.join(sorted(self.hosts))}, or set a key.")
        if self.key is not None:
            key = request.headers.get("authorization", "").partition(" ")[2].strip()
            if not hmac.compare_digest(key.encode(), self.key.encode()):
                raise UNAUTHORIZED.error("Authorization", "the key is missing or wrong")

    async def chat(self, request: Request) -> Response:
        self._require_room()
        with ExitStack() as held:
            # Bound to no name: the request may hold megabytes of video, which are freed once they are in a file.
            return await until_left(request, self._answered(await self._received(request, held), held))

    async def _received(self, request: Request, held: ExitStack) -> ChatRequest:
        """The request, which has a place until `held` is closed. One that is still being received has none."""
        body = await self.uploads.read(request)
        self._require_room()
        self.inside += 1
        held.callback(self._leave)
        return await self.handler.in_thread(self._parsed, body)

    def _require_room(self) -> None:
        if self.inside >= self.capacity:
            raise BUSY.error("server", f"{self.inside} requests are being answered or wait")

    def _parsed(self, body: bytes) -> ChatRequest:
        request = parse_request(body)
        if request.model != self.name:
            raise self._no_model(request.model)
        return request

    def _leave(self) -> None:
        self.inside -= 1

    async def _drain(self, request: Request) -> None:
        """Read the rest of a refused request, within bounds: clients read the answer after they sent all."""
        left = 0 if getattr(request.state, "is_read", False) else DRAINED * self.limits.body_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while left > 0 and (message := await request.receive())["type"] == "http.request":
                    left = left - len(message.get("body", b"")) if message.get("more_body") else 0

    async def _answered(self, request: ChatRequest, held: ExitStack) -> Response:
        began = time.perf_counter()
        sample = await self.handler.plan(request, held)
        request = request.model_copy(update={"messages": []})
        self.figures.media_s.observe(time.perf_counter() - began)
        answers = await self.handler.begin(request, sample)
        held.callback(answers.cancel)
        facts = openai_responses.input_facts(sample, answers.max_tokens, self.handler.backend.longest)
        self.figures.prompt_tokens.inc(sample.length)
        head = Head(f"chatcmpl-{secrets.token_hex(12)}", openai_responses.now(), self.name)
        reply = ReplyWriter(self, request, answers, head, facts, held)
        return await (reply.as_stream() if request.stream else reply.as_whole())


@dataclass(eq=False)
class ReplyWriter:
    """Writes the answers to one request to its client."""

    server: ServerApp
    request: ChatRequest
    answers: Answers
    head: Head
    facts: dict[str, Any]
    held: ExitStack

    def __post_init__(self) -> None:
        self.choices = [Choice() for _ in self.answers.answers]
        self.chat = self.server.handler.backend.planner.chat

    async def pieces(self) -> AsyncIterator[tuple[int, Any]]:
        """The pieces of the answers, which are also collected in `choices`."""
        figures, began = self.server.figures, self.answers.began
        is_first = True
        async for number, item in self.answers.pieces():
            choice = self.choices[number]
            if is_first:
                figures.first_token_s.observe(time.perf_counter() - began)
                is_first = False
            if isinstance(item, Result):
                choice.reason, choice.top = item.finish_reason, item.top_logprobs
                choice.count = self.answers.answers[number].detokenizer.count
                figures.answer_tokens.inc(choice.count)
            else:
                choice.content += [item.content] if item.content else []
                choice.reasoning += [item.reasoning] if item.reasoning else []
                choice.tokens += item.tokens
            yield number, item
        figures.answer_s.observe(time.perf_counter() - began)

    async def as_whole(self) -> Response:
        async for _ in self.pieces():
            pass
        logprobs = bool(self.request.logprobs)
        return JSONResponse(openai_responses.whole(self.head, self.choices, self.chat, self.facts, logprobs=logprobs))

    async def as_stream(self) -> Response:
        """The stream begins with the first piece; a failure before it gets an HTTP status."""
        pieces = self.pieces()
        first = await anext(pieces)
        return Events(self._events(first, pieces), self.held.pop_all(), self.server.figures)

    async def _events(self, first: tuple[int, Any], others: AsyncIterator[tuple[int, Any]]) -> AsyncIterator[bytes]:
        for number in range(len(self.choices)):
            role = openai_responses.part(self.head, number, {"role": "assistant", "content": ""})
            yield event(role if number else {**role, "vidqa": self.facts})
        try:
            for chunk in self._chunks(*first):
                yield chunk
            async for number, item in others:
                for chunk in self._chunks(number, item):
                    yield chunk
        except ProblemError as failed:
            yield event(openai_responses.error(failed.problems)[1])
            return
        if self.request.stream_options and self.request.stream_options.include_usage:
            usage = openai_responses.usage_of(self.answers.sample.length, self.choices)
            yield event(self.head.object("chat.completion.chunk", [], usage=usage))
        yield b"data: [DONE]\n\n"

    def _chunks(self, number: int, item: Any) -> list[bytes]:
        if isinstance(item, Result):
            return [event(openai_responses.part(self.head, number, {}, reason=item.finish_reason))]
        words = None
        if self.request.logprobs:
            words = {"content": openai_responses.logprobs_of(item.tokens, (), self.chat)}
        texts = {"reasoning_content": item.reasoning, "content": item.content}
        delta = {name: text for name, text in texts.items() if text}
        return (
            [event(openai_responses.part(self.head, number, delta, words))]
            if delta or (words and words["content"])
            else []
        )


class Events(Response):
    """A stream of server-sent events; a client that leaves ends it at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], held: ExitStack, figures: Figures) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.held, self.figures = events, held, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def all_of_them() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self.events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await until_left(Request(scope, receive), all_of_them())
        except ClientDisconnect:
            self.figures.left.inc()
        finally:
            self.held.close()


async def until_left(request: Request, work: Any) -> Any:
    """The result of `work`. When the client leaves, `work` is cancelled and ClientDisconnect raised."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait([working, leaving])


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(table: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def failure(problems: list[Problem], status: int | None = None) -> Response:
    code, body = openai_responses.error(problems, status)
    headers = {"Retry-After": RETRY_S} if code == 429 else {}
    if code == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return JSONResponse(body, status_code=code, headers=headers)
