"""The HTTP endpoints of the server: routes, access, limits, metrics."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from vidqa.core.cli import note
from vidqa.core.problem import Problem, ProblemError
from vidqa.planning.requests import Result
from vidqa.serving._base import Limits
from vidqa.serving.connections import Uploads
from vidqa.serving.detokenizer import Piece
from vidqa.serving.handler import Answers, RequestHandler
from vidqa.serving.openai_responses import ResponseWriter, error_response
from vidqa.serving.problems import BUSY, FAILED, NOT_FOUND, UNAUTHORIZED
from vidqa.serving.schema import ChatRequest, parse_request

LEFT = 499  # status of a request whose client has left, in logs and metrics alone
RETRY_S = "1"
DRAINED = 4  # times the largest body
DRAIN_S = 10.0
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
Endpoint = Callable[[Request], Awaitable[Response]]


class Figures:
    """Metrics since the start, with the memory and CPU time of the process."""

    def __init__(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("vidqa_requests", "Requests answered, by HTTP status.", ["status"], registry=registry)
        self.prompt_tokens = Counter("vidqa_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.answer_tokens = Counter("vidqa_answer_tokens", "Tokens of answers.", registry=registry)
        self.left = Counter("vidqa_clients_left", "Clients that left before their answer.", registry=registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=registry)
        self.media_s = histogram("vidqa_media_seconds", "To fetch and plan a request's media.")
        self.first_token_s = histogram("vidqa_first_token_seconds", "From the request to its first token.")
        self.answer_s = histogram("vidqa_answer_seconds", "From the request to its whole answer.")
        Gauge("vidqa_requests_running", "Requests that wait or are answered.", registry=registry).set_function(running)
        Gauge("vidqa_answers_waiting", "Answers that wait for their turn.", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        return generate_latest(self.registry)


@dataclass(eq=False)
class ServerApp:
    """The server's state. `name` is the model's name in the API; `hosts` are the accepted host names, empty for all."""

    name: str
    handler: RequestHandler
    limits: Limits
    key: str | None
    hosts: frozenset[str] = frozenset()
    inside: int = 0  # requests
    created: int = field(default_factory=lambda: int(time.time()))

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
        self.figures.prompt_tokens.inc(sample.length)
        writer = ResponseWriter(self.name, request, answers, self.handler.backend)
        pieces = self._measured(answers)
        if request.stream:  # it begins with the first piece: a failure before it gets an HTTP status
            return Events(writer.events(await anext(pieces), pieces), held.pop_all(), self.figures)
        async for _ in pieces:
            pass
        return JSONResponse(writer.completion())

    async def _measured(self, answers: Answers) -> AsyncIterator[tuple[int, Piece | Result]]:
        is_first = True
        async for number, item in answers.pieces():
            if is_first:
                self.figures.first_token_s.observe(time.perf_counter() - answers.began)
                is_first = False
            if isinstance(item, Result):
                self.figures.answer_tokens.inc(answers.choices[number].count)
            yield number, item
        self.figures.answer_s.observe(time.perf_counter() - answers.began)


class Events(Response):
    """A stream of server-sent events, closed as soon as its client leaves."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], held: ExitStack, figures: Figures) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.held, self.figures = events, held, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_all() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self.events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await until_left(Request(scope, receive), send_all())
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


def failure(problems: list[Problem], status: int | None = None) -> Response:
    code, body = error_response(problems, status)
    headers = {"Retry-After": RETRY_S} if code == 429 else {}
    if code == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return JSONResponse(body, status_code=code, headers=headers)
