"""The HTTP endpoints of the server: routes, access, limits, metrics.

A chat request passes `_guarded` (key, HTTP status of problems, count), `chat` (a slot, until the client disconnects),
`_receive` (body to ChatRequest) and `_respond` (answers as JSON, or as an EventStream).
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

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

CLIENT_CLOSED_REQUEST = 499  # nginx's status of a request whose client has disconnected; only in logs and metrics
RETRY_AFTER_S = "1"
DRAIN_BODIES = 4  # the rest of a refused body is read up to this many times the body limit
DRAIN_TIMEOUT_S = 10.0
LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
Endpoint = Callable[[Request], Awaitable[Response]]


class ServerMetrics:
    """Prometheus metrics since the start, with the memory and CPU time of the process. `running` and `waiting` return
    the current numbers of requests in flight and of queued answers."""

    def __init__(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("vidqa_requests", "Requests answered, by HTTP status.", ["status"], registry=registry)
        self.prompt_tokens = Counter("vidqa_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.answer_tokens = Counter("vidqa_answer_tokens", "Tokens of answers.", registry=registry)
        self.clients_left = Counter("vidqa_clients_left", "Clients that left before their answer.", registry=registry)
        histogram = partial(Histogram, buckets=LATENCY_BUCKETS_S, registry=registry)
        self.media_s = histogram("vidqa_media_seconds", "To fetch and plan a request's media.")
        self.first_token_s = histogram("vidqa_first_token_seconds", "From the request to its first token.")
        self.answer_s = histogram("vidqa_answer_seconds", "From the request to its whole answer.")
        Gauge("vidqa_requests_running", "Requests that wait or are answered.", registry=registry).set_function(running)
        Gauge("vidqa_answers_waiting", "Answers that wait for their turn.", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


@dataclass(eq=False)
class ServerApp:
    """The server's state, and its endpoints. `name` is the model's name in the API; `key` is required from clients,
    None for no key; `allowed_hosts` are the accepted names in the Host header, empty for all."""

    name: str
    handler: RequestHandler
    limits: Limits
    key: str | None
    allowed_hosts: frozenset[str] = frozenset()
    requests_in_flight: int = 0  # fully received, and answered or waiting
    created: int = field(default_factory=lambda: int(time.time()))  # Unix time in seconds

    def __post_init__(self) -> None:
        backend = self.handler.backend
        self.server_metrics = ServerMetrics(lambda: self.requests_in_flight, lambda: backend.waiting)
        self.capacity = backend.batch_size + self.limits.queue
        self.uploads = Uploads(self.limits, self.capacity)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/v1/models", self._guarded(self.models), methods=["GET"]),
            Route("/v1/models/{name:path}", self._guarded(self.model), methods=["GET"]),
            Route("/v1/chat/completions", self._guarded(self.chat), methods=["POST"]),
        ]
        no_such_address = NOT_FOUND.at("address", "there is no such endpoint", "See references/serving.md.")

        async def not_found(request: Request, failed: Exception) -> Response:
            return problem_response([no_such_address], getattr(failed, "status_code", 404))

        return Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found})

    async def health(self, request: Request) -> Response:
        if self.handler.backend.is_answering:
            return JSONResponse({"status": "ok", "model": self.name})
        return problem_response([FAILED.at("server", "the generator has stopped")])

    async def metrics(self, request: Request) -> Response:
        return Response(self.server_metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

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
        """The endpoint behind a check of the key; problems become HTTP statuses, and every request is counted."""

        async def guarded(request: Request) -> Response:
            started = time.perf_counter()
            try:
                self._authorize(request)
                response = await endpoint(request)
            except ProblemError as refused:
                response = problem_response(refused.problems)
                await self._drain_body(request)
            except ClientDisconnect:
                response = Response(status_code=CLIENT_CLOSED_REQUEST)
                self.server_metrics.clients_left.inc()
            status = str(response.status_code)
            self.server_metrics.requests.labels(status).inc()
            note(f"{request.method} {request.url.path} {status} {time.perf_counter() - started:.2f} s")
            return response

        return guarded

    def _authorize(self, request: Request) -> None:
        """Raise SERVE_UNAUTHORIZED for another host or a wrong key."""
        if self.allowed_hosts and _host_of(request) not in self.allowed_hosts:
            message = "the request's Host header is not a name of this machine"
            remedy = f"Use one of {', '.join(sorted(self.allowed_hosts))}, or set a key."
            raise UNAUTHORIZED.error("Host", message, remedy)
        if self.key is not None:
            key = request.headers.get("authorization", "").partition(" ")[2].strip()
            if not hmac.compare_digest(key.encode(), self.key.encode()):
                raise UNAUTHORIZED.error("Authorization", "the key is missing or wrong")

    async def chat(self, request: Request) -> Response:
        self._require_capacity()
        with ExitStack() as cleanup:
            # No variable for the request: it may hold megabytes of video, which are freed once they are in a file.
            return await run_until_disconnect(request, self._respond(await self._receive(request, cleanup), cleanup))

    async def _receive(self, request: Request, cleanup: ExitStack) -> ChatRequest:
        """The parsed request, in flight from the end of its body until `cleanup` is closed. Raises SERVE_BUSY if too
        many are in flight."""
        body = await self.uploads.read(request)
        self._require_capacity()
        self.requests_in_flight += 1
        cleanup.callback(self._release_slot)
        return await self.handler.in_thread(self._parse, body)

    def _require_capacity(self) -> None:
        if self.requests_in_flight >= self.capacity:
            raise BUSY.error("server", f"{self.requests_in_flight} requests are running or waiting")

    def _parse(self, body: bytes) -> ChatRequest:
        request = parse_request(body)
        if request.model != self.name:
            raise self._no_model(request.model)
        return request

    def _release_slot(self) -> None:
        self.requests_in_flight -= 1

    async def _drain_body(self, request: Request) -> None:
        """Read the rest of a refused request's body, within bounds: many clients send all of it before they read the
        response."""
        left = 0 if getattr(request.state, "is_read", False) else DRAIN_BODIES * self.limits.body_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while left > 0 and (message := await request.receive())["type"] == "http.request":
                    left = left - len(message.get("body", b"")) if message.get("more_body") else 0

    async def _respond(self, request: ChatRequest, cleanup: ExitStack) -> Response:
        """Plan and answer a request. Closing `cleanup`, which is passed to a stream, cancels the answers."""
        began = time.perf_counter()
        sample = await self.handler.plan(request, cleanup)
        request = request.model_copy(update={"messages": []})  # frees the media
        self.server_metrics.media_s.observe(time.perf_counter() - began)
        answers = await self.handler.begin(request, sample)
        cleanup.callback(answers.cancel)
        self.server_metrics.prompt_tokens.inc(sample.length)
        writer = ResponseWriter(self.name, request, answers, self.handler)
        pieces = self._timed_pieces(answers)
        if request.stream:  # wait for the first piece: an earlier failure can still become an HTTP status
            return EventStream(writer.events(await anext(pieces), pieces), cleanup.pop_all(), self.server_metrics)
        async for _ in pieces:
            pass
        return JSONResponse(writer.completion())

    async def _timed_pieces(self, answers: Answers) -> AsyncIterator[tuple[int, Piece | Result]]:
        """Pieces and final results of the answers, each with its choice's number; records their latency and tokens."""
        is_first = True
        async for number, item in answers.pieces():
            if is_first:
                self.server_metrics.first_token_s.observe(time.perf_counter() - answers.began)
                is_first = False
            if isinstance(item, Result):
                self.server_metrics.answer_tokens.inc(answers.choices[number].detokenizer.count)
            yield number, item
        self.server_metrics.answer_s.observe(time.perf_counter() - answers.began)


class EventStream(Response):
    """A stream of server-sent events. It closes `cleanup` at its end, or as soon as its client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], cleanup: ExitStack, server_metrics: ServerMetrics) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.cleanup, self.server_metrics = events, cleanup, server_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_all() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self.events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await run_until_disconnect(Request(scope, receive), send_all())
        except ClientDisconnect:
            self.server_metrics.clients_left.inc()
        finally:
            self.cleanup.close()


def _host_of(request: Request) -> str:
    """The name in the Host header; empty if invalid. `request.url` would then have this machine's own."""
    with suppress(ValueError):
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return ""


async def run_until_disconnect(request: Request, work: Awaitable[Any]) -> Any:
    """The result of `work`. If the client disconnects, `work` is cancelled and ClientDisconnect raised."""
    work_task, disconnect_task = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait([work_task, disconnect_task], return_when=asyncio.FIRST_COMPLETED)
        if work_task.done():
            return work_task.result()
        raise ClientDisconnect
    finally:
        for task in (work_task, disconnect_task):
            task.cancel()
        await asyncio.wait([work_task, disconnect_task])


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def problem_response(problems: list[Problem], status: int | None = None) -> Response:
    """Problems as an error body of OpenAI's API; their own HTTP status unless `status` replaces it."""
    code, body = error_response(problems, status)
    headers = {"Retry-After": RETRY_AFTER_S} if code == 429 else {}
    if code == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return JSONResponse(body, status_code=code, headers=headers)
