"""The parts of a server that need no model: text from tokens, addresses, options, who is let in."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from server import asked
from starlette.requests import Request
from tiny_world import tiny_model

from vidqa.core.problem import ProblemError
from vidqa.families.chat import Chat, load_chat
from vidqa.planning.requests import Sampling
from vidqa.serving._base import LOOPBACK, Limits, listen, served_key
from vidqa.serving.app import ServerApp
from vidqa.serving.detokenizer import Detokenizer
from vidqa.serving.grammar import Grammars
from vidqa.serving.handler import RequestHandler
from vidqa.serving.media import Hosts, _is_public
from vidqa.serving.schema import ChatRequest, parse_request
from vidqa.serving.start import name_of, serving_layers
from vidqa.spec import resolve

ACCENTS = "Ça va: “naïve” 視頻 🎬!"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def chat(model: Path) -> Chat:
    return load_chat(model)


def told(chat: Chat, text: str, stops: tuple[str, ...] = (), *, thinking: bool = False) -> tuple[str, str, list[str]]:
    """(content, reasoning, pieces of content) of a text that comes token by token."""
    detokenizer = Detokenizer(chat, stops, thinking=thinking, logprobs=False)
    ids = chat.tokens.core.encode(text, add_special_tokens=False).ids
    pieces = [piece for token_id in ids if (piece := detokenizer.take(token_id, math.nan))]
    pieces.append(detokenizer.end())
    content = [piece.content for piece in pieces]
    return "".join(content), "".join(piece.reasoning for piece in pieces), content


def test_text_is_whole_letters_and_all_of_them(chat: Chat) -> None:
    content, reasoning, pieces = told(chat, ACCENTS)
    assert (content, reasoning) == (ACCENTS, "") and len(pieces) > 3
    assert all("�" not in piece for piece in pieces)
    detokenizer = Detokenizer(chat, (), thinking=False, logprobs=False)
    *ids, _ = chat.tokens.core.encode("🎬", add_special_tokens=False).ids
    assert [detokenizer.take(token_id, math.nan) for token_id in ids] == [None] * len(ids)
    assert detokenizer.end().content == chat.decode(ids)  # what was cut off inside a letter is not lost


@pytest.mark.parametrize("stop", ["va", "a: “n", "視", ACCENTS[-1], ACCENTS])
def test_a_stop_text_is_never_begun(chat: Chat, stop: str) -> None:
    content, _, pieces = told(chat, ACCENTS, ("not in it", stop))
    assert content == ACCENTS[: ACCENTS.index(stop)]
    assert not any(stop.startswith(piece) and piece for piece in pieces[1:-1] if len(stop) > 1)


def test_the_earliest_stop_text_counts(chat: Chat) -> None:
    assert told(chat, "one two three", ("three", "two"))[0] == "one "
    assert told(chat, "one two thre", ("three",))[0] == "one two thre"


@pytest.mark.parametrize(
    ("text", "thinking", "content", "reasoning"),
    [
        ("<think>\nA door.\n</think>\n\nYes", False, "Yes", "\nA door.\n"),
        ("A door.</think>Yes", True, "Yes", "A door."),
        ("No <think> at first", False, "No <think> at first", ""),
        ("<thin", False, "<thin", ""),
        ("<think>cut </thi", False, "", "cut </thi"),
        ("never closed", True, "", "never closed"),
    ],
)
def test_thinking_is_told_from_the_answer(chat: Chat, text: str, thinking: bool, content: str, reasoning: str) -> None:
    assert told(chat, text, thinking=thinking)[:2] == (content, reasoning)


def test_bytes_of_tokens_are_those_of_the_text(chat: Chat) -> None:
    ids = chat.tokens.core.encode(f"{ACCENTS} \n\x7f", add_special_tokens=False).ids
    bytes_of = Grammars(chat).tokenizer.decode_bytes
    assert b"".join(bytes_of([token_id]) for token_id in ids) == f"{ACCENTS} \n\x7f".encode()
    assert bytes_of([chat.eos_ids[0]]).decode() == chat.tokens.text_of(chat.eos_ids[0])


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "198.18.0.1", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1"),
        *("::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "64:ff9b:1::808:808", "fec0::1"),
        *("5f00::1", "3fff::1", "2001:0:1::1", "2002:808:808::", "4000::1", "192.0.0.8", "192.0.0.9", "192.88.99.1"),
    ],
)
def test_addresses_that_are_not_of_the_open_internet(address: str) -> None:
    assert not _is_public(address)


def test_addresses_of_the_open_internet() -> None:
    assert all(map(_is_public, ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")))


def test_hosts_are_allowed_with_their_ports() -> None:
    hosts = Hosts.parse(["media.example", "Other.example:8443", "[::1]:80"])
    assert hosts.allow("media.example", 443, "https") and hosts.allow("media.example", 80, "http")
    assert hosts.allow("other.example", 8443, "https") and hosts.allow("::1", 80, "http")
    assert not hosts.allow("media.example", 8080, "http") and not hosts.allow("a.media.example", 443, "https")
    for wrong in ("https://media.example", "a@b", "", "host/path", "host:port"):
        with pytest.raises(ValueError):
            Hosts.parse([wrong])


def test_a_problem_names_the_place_in_the_request() -> None:
    with pytest.raises(ProblemError) as wrong:
        parse_request(
            b'{"model": "m", "temperature": 9, "messages": [{"role": "user", "content": [{"type": "text"}]}]}'
        )
    assert [problem.where for problem in wrong.value.problems] == ["messages[0].content[0].text", "temperature"]
    silent = parse_request(
        str(asked("Hi", user=None, tools=None, presence_penalty=0.0)).replace("None", "null").replace("'", '"').encode()
    )
    assert silent.stops == () and silent.choices is None and silent.json_form is None


def request(**fields: Any) -> ChatRequest:
    return parse_request(json.dumps(asked("Hi", **fields)).encode())


def test_a_request_is_drawn_as_it_says_and_else_as_the_server_was_told() -> None:
    defaults = Sampling(64, 0.5, 0.8, 20, 1.1, presence_penalty=1.5)
    handler: Any = SimpleNamespace(defaults=defaults, choices=["yes", "no"])
    default = RequestHandler._sampling(handler, request(temperature=None, seed=None), 64)
    assert replace(default, seed=0) == Sampling(64, 0.5, 0.8, 20, 1.1, 0, 1.5, 0.0)
    own = {"temperature": 0, "top_p": 1, "top_k": -1, "presence_penalty": 0, "frequency_penalty": -0.5, "seed": 7}
    assert RequestHandler._sampling(handler, request(**own), 9) == Sampling(9, 0.0, 1.0, 0, 1.1, 7, 0.0, -0.5)
    assert RequestHandler._with_default_choices(handler, request()).choices == ["yes", "no"]
    for form in ({"guided_choice": ["a"]}, {"response_format": {"type": "text"}}, {"structured_outputs": {"json": {}}}):
        assert RequestHandler._with_default_choices(handler, request(**form)) == request(**form)
    with pytest.raises(ProblemError, match="presence_penalty"):
        request(presence_penalty=2.5)


def test_what_is_wrong_with_a_list_is_said_of_the_list() -> None:
    with pytest.raises(ProblemError) as wrong:
        parse_request(json.dumps(asked("Hi", stop=["a"] * 17)).encode())
    (problem,) = wrong.value.problems
    assert problem.where == "stop" and "at most 16 items" in problem.message


def test_the_place_of_a_form_is_the_field_that_names_it() -> None:
    for name, value in (
        ("guided_choice", ["yes", "no"]),
        ("structured_outputs", {"json": {"type": "object"}}),
        ("response_format", {"type": "json_object"}),
    ):
        assert parse_request(json.dumps(asked("Hi", **{name: value})).encode()).form_place == name


@pytest.mark.parametrize(
    ("header", "is_allowed"),
    [
        *(("127.0.0.1", True), ("LOCALHOST:8000", True), ("[::1]:8000", True)),
        *(
            ("evil.example", False),
            ("evil.example:99999", False),
            ("evil.example:", False),
            ("[::1", False),
            ("", False),
        ),
    ],
)
def test_a_request_names_a_host_that_is_allowed(header: str, is_allowed: bool) -> None:
    handler: Any = SimpleNamespace(backend=SimpleNamespace(waiting=0, batch_size=1))
    app = ServerApp("model", handler, Limits(), None, LOOPBACK)
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "scheme": "http"}
    request = Request({**scope, "server": ("127.0.0.1", 8000), "headers": [(b"host", header.encode())]})
    refused: Any = nullcontext() if is_allowed else pytest.raises(ProblemError, match="SERVE_UNAUTHORIZED")
    with refused:
        app._authorize(request)


def test_other_machines_need_a_key() -> None:
    assert served_key("127.0.0.1", None) is None and served_key("0.0.0.0", "0123456789abcdef") == "0123456789abcdef"
    for host, key, words in (("0.0.0.0", None, "VIDQA_API_KEY is not set"), ("127.0.0.1", "short", "16 are needed")):
        with pytest.raises(ProblemError, match=words):
            served_key(host, key)


def test_a_port_that_is_taken_is_a_problem() -> None:
    with listen("127.0.0.1", 0) as door:
        door.listen()
        with pytest.raises(ProblemError, match="SERVE_ADDRESS"):
            listen("127.0.0.1", door.getsockname()[1])


def test_a_folder_of_weights_is_served_with_the_users_values(model: Path, tmp_path: Path) -> None:
    spec: Any = resolve("inference", serving_layers(str(model), None, ["vision.nframes=12"], tmp_path)).spec
    assert (spec.model.model_name, spec.vision.nframes, spec.inference.generator) == (str(model), 12, "native")
    assert name_of("outputs/train/my-run/") == "my-run" and name_of("hf_model://nvidia/Cosmos") == "Cosmos"
    with pytest.raises(ProblemError, match="SPEC_PARENT_RUN"):
        serving_layers(str(model.parent / "absent"), None, [], tmp_path)
