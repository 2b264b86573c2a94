"""What clients may take of a server: connections, time, work. A real uvicorn, whose limits are short here."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from hostile_requests import nested, properties
from server import asked
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tiny_world import tiny_model

from vidqa.core.problem import ProblemError
from vidqa.families.chat import Chat, load_chat
from vidqa.serving import connections
from vidqa.serving._base import Limits, listen
from vidqa.serving.app import problem_response
from vidqa.serving.connections import Connection, Uploads
from vidqa.serving.grammar import Grammars
from vidqa.serving.media import Hosts, MediaAccess, MediaStore, download
from vidqa.serving.openai_responses import status_of
from vidqa.serving.schema import NamedMedium, parse_request

LIMITS = Limits(body_start_s=3.0, connections=12, header_s=1.0, read_s=1.0)
UPLOADS = 4
HEAD = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
LARGE = 32 << 20  # bytes, more than the buffers of a connection hold


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """A server that takes bodies and gives one large text."""
    uploads = Uploads(LIMITS, UPLOADS)

    async def body(request: Request) -> Response:
        try:
            return PlainTextResponse(str(len(await uploads.read(request))))
        except ProblemError as refused:
            return problem_response(refused.problems)

    async def large(request: Request) -> Response:
        return PlainTextResponse(b"x" * LARGE)

    routes = [Route("/body", body, methods=["POST"]), Route("/large", large)]
    connection: Any = partial(Connection, limits=LIMITS)
    config = uvicorn.Config(Starlette(routes=routes), log_level="warning", http=connection, lifespan="off")
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as door:
        found = door.getsockname()
        thread = threading.Thread(target=asyncio.run, args=[server.serve([door])])
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield found
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return load_chat(tiny_model(tmp_path_factory.mktemp("limits")))


def ended(connection: socket.socket, within_s: float) -> bool:
    """Whether the server closes a connection in time."""
    connection.settimeout(within_s)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def answered(address: tuple[str, int], body: bytes = b"{}") -> int:
    """The status that a request is answered with."""
    with socket.create_connection(address, 20) as connection:
        connection.sendall(HEAD % len(body) + body)
        return int(connection.recv(1 << 16).split()[1])


@pytest.mark.parametrize("start", [b"", b"POST /body HTTP/1.1\r\nHost: a\r\n", b"{request}GET /"])
def test_a_connection_without_a_whole_header_is_closed(address: tuple[str, int], start: bytes) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(start.replace(b"{request}", HEAD % 2 + b"{}"))
        time.sleep(0.5)
        connection.sendall(b"X")  # a letter more does not begin the time anew
        began = time.monotonic()
        assert ended(connection, 20) and time.monotonic() - began < 15


def test_connections_without_a_request_make_room(address: tuple[str, int]) -> None:
    with ExitStack() as held:
        for _ in range(4 * LIMITS.connections):
            held.enter_context(socket.create_connection(address, 20))
        began = time.monotonic()
        assert answered(address) == 200 and time.monotonic() - began < LIMITS.header_s + 5


def test_a_slow_body_is_refused_and_keeps_nobody_out(address: tuple[str, int]) -> None:
    with ExitStack() as held:
        slow = [held.enter_context(socket.create_connection(address, 20)) for _ in range(UPLOADS)]
        for connection in slow:
            connection.sendall(HEAD % 100 + b"{")
        time.sleep(1.2)
        began = time.monotonic()
        assert answered(address) == 200 and time.monotonic() - began < 1.5
        for connection in slow:
            with contextlib.suppress(OSError):
                connection.sendall(b" ")
            assert b" 400 " in connection.recv(1 << 16) and time.monotonic() - began < LIMITS.body_start_s + 5


def test_an_upload_whose_time_is_over_makes_room_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the end of its time and that of its task, it can be dropped no more."""
    monkeypatch.setattr(connections, "PROTECTED_S", 0.0)
    uploads = Uploads(Limits(body_start_s=0.2), 1)

    async def silence() -> Any:
        await asyncio.sleep(60)
        yield b""

    slow: Any = SimpleNamespace(headers={"content-type": "application/json"}, state=SimpleNamespace(), stream=silence)

    async def next_upload_at_its_end() -> None:
        reading = asyncio.create_task(uploads.read(slow))
        await asyncio.sleep(0.05)
        (upload,) = uploads._running
        room = asyncio.get_running_loop().create_future()
        when = upload.deadline.when()
        assert when
        asyncio.get_running_loop().call_at(when, lambda: room.set_result(uploads._make_room()))
        with pytest.raises(ProblemError, match="SERVE_REQUEST"):
            await reading
        assert room.done()

    asyncio.run(next_upload_at_its_end())


@pytest.mark.parametrize(
    "head", ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
)
def test_a_download_has_its_time_whatever_comes_by_the_letter(head: str) -> None:
    def send(listener: socket.socket) -> None:
        with listener.accept()[0] as client, contextlib.suppress(OSError):
            client.sendall(head.encode())
            for _ in range(50):
                client.sendall(b"0")
                time.sleep(0.2)

    with listen("127.0.0.1", 0) as listener:
        listener.listen()
        threading.Thread(target=send, args=[listener], daemon=True).start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ProblemError, match="no response within 1 s"):
            download(f"http://{host}/a.mp4", Hosts.parse([host]), Limits(fetch_s=1.0), "messages")
        assert time.monotonic() - began < 6


def test_a_large_body_comes_in_parts(address: tuple[str, int]) -> None:
    assert answered(address, b"{" + b" " * (1 << 20) + b"}") == 200


def test_a_client_that_does_not_read_is_left(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(2 * LIMITS.read_s)
        connection.settimeout(20)
        size = 0
        with contextlib.suppress(OSError):
            while part := connection.recv(1 << 20):
                size += len(part)
        assert size < LARGE


def masks(chat: Chat, schema: dict[str, Any], count: int = 1) -> Any:
    body = json.dumps(asked("Hi", structured_outputs={"json": schema})).encode()
    return Grammars(chat).forms(parse_request(body), count, thinking=False)


def test_a_grammar_is_compiled_once_for_all_answers(chat: Chat) -> None:
    (alone,) = masks(chat, properties(400))
    began = time.process_time()
    (alone,) = masks(chat, properties(400))
    once = time.process_time() - began
    began = time.process_time()
    many = masks(chat, properties(400), 16)
    assert time.process_time() - began < 8 * once  # 16 compilations would take 16 times as long
    token = chat.text_ids("{")[0]
    many[0].allowed([token])
    assert (many[1].allowed([]) == alone.allowed([])).all()  # each is for itself
    assert (many[1].allowed([token]) == many[0].allowed([token])).all()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (properties(1001), "properties"),
        ({"anyOf": [properties(600), properties(600)]}, "properties"),
        (nested(100), "deeper"),
        ({"type": "integer", "multipleOf": 99_991}, "multipleOf"),
        ({"type": "number", "multipleOf": 1.00003}, "multipleOf"),
        ({"enum": ["x" * 70_000]}, "characters"),
    ],
)
def test_a_schema_that_takes_long_is_refused_before_it_is_compiled(
    chat: Chat, schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProblemError, match=message) as refused:
        masks(chat, schema)
    assert refused.value.problems[0].code == "SERVE_REQUEST"


def test_a_grammar_that_becomes_too_complex_in_an_answer_is_a_problem(chat: Chat) -> None:
    (form,) = masks(chat, properties(1000))
    token_ids = chat.text_ids('{"p5":"a"')
    for end in range(len(token_ids) + 1):
        allowed = form.allowed(token_ids[:end])
    assert form.problem is not None and form.problem.code == "SERVE_REQUEST"
    assert allowed.nonzero()[0].tolist() == sorted(chat.eos_ids)  # nothing else may come: the answer ends


def test_a_body_of_many_problems_is_judged_in_time() -> None:
    for body in ({"messages": [0] * 30_000}, {f"k{i}": 0 for i in range(30_000)}, {"k" * 10**6: 0}):
        began = time.process_time()
        with pytest.raises(ProblemError) as wrong:
            parse_request(json.dumps(body).encode())
        assert time.process_time() - began < 60  # seconds; a quadratic judgement takes many minutes
        assert all(len(problem.where) + len(problem.message) < 1000 for problem in wrong.value.problems)


def test_the_values_of_a_body_are_counted_before_they_are_judged() -> None:
    for body in (asked("Hi", metadata=[[]] * 70_000), {"messages": [[0] * 300] * 300}):
        with pytest.raises(ProblemError, match="65536 values"):
            parse_request(json.dumps(body).encode())
    with pytest.raises(ProblemError, match="commas"):
        parse_request(b"[" + b"{}," * 600_000 + b"{}]")


def test_media_that_the_disk_has_no_room_for_leave_no_file(tmp_path: Path) -> None:
    data, access = b"x" * 100_000, MediaAccess((), Hosts.parse([]), MediaStore(tmp_path), LIMITS)
    medium = NamedMedium("video", f"data:video/mp4;base64,{base64.b64encode(data).decode()}", "messages")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with ExitStack() as held, pytest.raises(ProblemError) as full:
            access.fetch(medium, held)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == [] and status_of(full.value.problems[0]) == 503
    with ExitStack() as held:
        assert Path(access.fetch(medium, held).path).read_bytes() == data
    assert list(tmp_path.iterdir()) == []


def test_a_medium_is_given_back_while_another_one_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, first, second = MediaStore(tmp_path), ExitStack(), ExitStack()
    store.hold(b"a", first)
    begun, goes_on, write = threading.Event(), threading.Event(), Path.write_bytes

    def slow(path: Path, data: bytes) -> int:
        begun.set()
        assert goes_on.wait(20)
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", slow)
    writing = threading.Thread(target=store.hold, args=[b"b", second])
    writing.start()
    assert begun.wait(20)
    first.close()  # as the event loop does
    assert list(tmp_path.iterdir()) == []
    goes_on.set()
    writing.join(20)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"b"]
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_long_conversation_is_taken() -> None:
    messages = [{"role": role, "content": "a, [b] {c}"} for _ in range(2000) for role in ("assistant", "user")]
    assert len(parse_request(json.dumps({"model": "m", "messages": messages}).encode()).messages) == 4000
