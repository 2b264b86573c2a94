"""A server, asked by OpenAI's client as users have it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import torch
from clips import decode_frames
from decode_workers import workers_of
from hostile_requests import *  # noqa: F403
from server import KEY, LONG, Served, asked, data_url, image, serving, video
from tiny_world import tiny_data, tiny_model

from vidqa.data import load_records
from vidqa.data.record import Record, Turn
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.pixels import resize_frames
from vidqa.engine.engine_thread import EngineThread
from vidqa.engine.generators import GENERATORS
from vidqa.engine.generators._base import Settings
from vidqa.engine.serve import GRACE_S, LAST_S
from vidqa.planning.requests import Request, Sampling
from vidqa.planning.samples import Planner, Prompting

pytestmark = pytest.mark.slow
QUESTION = "Is the first bit set?"
HOLD = {"max_tokens": 3500, "extra_body": {"structured_outputs": {"json": LONG}}}
LEAVING = """
import json, sys, urllib.request
address, body, headers = json.load(sys.stdin)
urllib.request.urlopen(urllib.request.Request(address, body.encode(), headers))
"""


class Files(BaseHTTPRequestHandler):
    """Another host: a clip, a redirect to it, an answer that does not end, and one that never begins."""

    clip = b""
    silence = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.silence.wait()
        if self.path == "/moved.mp4":
            self.send_response(302)
            self.send_header("Location", "/clip.mp4")
            self.end_headers()
            return
        self.send_response(200 if self.path in ("/clip.mp4", "/endless") else 404)
        self.end_headers()
        if self.path == "/clip.mp4":
            self.wfile.write(self.clip)
        try:
            while self.path == "/endless":
                self.wfile.write(bytes(1 << 16))
        except OSError:
            return

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("serving")
    return folder, tiny_model(folder), tiny_data(folder, clips=3, images=1, texts=0)


@pytest.fixture(scope="module")
def elsewhere(world: tuple[Path, Path, Path]) -> Iterator[int]:
    """The port of another host, which is allowed by its address."""
    Files.clip = (world[2] / "videos/0.mp4").read_bytes()
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        yield host.server_address[1]
        Files.silence.set()
        host.shutdown()


@pytest.fixture(scope="module")
def served(world: tuple[Path, Path, Path], elsewhere: int) -> Iterator[Served]:
    folder, model, data = world
    allowed = [f"127.0.0.1:{elsewhere}", f"localhost:{elsewhere}"]
    words = [word for host in allowed for word in ("--allow-host", host)]
    bounds = ["--queue", "2", "--max-body-mb", "2", "--max-media-mb", "1", "--set", "engine.decode_timeout_s=20"]
    with serving(folder, model, data, *words, *bounds, "--allow-path", str(data)) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return served.client()


@pytest.fixture(scope="module")
def clip(served: Served) -> dict[str, Any]:
    return video(data_url(served.data / "videos/0.mp4"))


def reference(served: Served) -> dict[str, Any]:
    """The answer of transformers to the first record, planned and decoded as an evaluation does it."""
    planner = Planner(served.model, SimpleNamespace(nframes=4), Prompting(for_generation=True))
    samples, _ = planner.plan(load_records(served.data / "annotations.json", served.data)[:1])
    settings = Settings(served.model, None, torch.float32, torch.device("cpu"), planner, longest=4096, batch_size=1)
    (sample,) = samples
    (ref,), (plan,) = sample.record.media, sample.plans
    frames = [resize_frames(decode_frames(ref.path, None, plan.indices), plan.height, plan.width)]
    token_ids, stop_ids = planner.encode(sample).token_ids, planner.chat.eos_ids
    request = Request("r", token_ids, Sampling(8), stop_ids, sample.plans, lambda: frames, logprobs=True)
    with closing(GENERATORS["transformers"](settings)) as session:
        ((result,),) = session.generate(iter([request]))
    return {"result": result, "text": planner.chat.decode(result.token_ids), "sample": sample}


def test_an_answer_is_that_of_an_evaluation(served: Served, client: openai.OpenAI, clip: dict[str, Any]) -> None:
    expected = reference(served)
    sample, plan = expected["sample"], expected["sample"].plans[0]
    assert sample.record.question == QUESTION
    found = client.chat.completions.create(**asked(clip, QUESTION), logprobs=True, top_logprobs=3)
    (choice,) = found.choices
    assert choice.message.content == expected["text"] and choice.finish_reason == expected["result"].finish_reason
    words = choice.logprobs.content
    assert [word.logprob for word in words] == pytest.approx(expected["result"].logprobs, abs=1e-4)
    assert all(len(word.top_logprobs) == 3 and word.top_logprobs[0].token == word.token for word in words)
    assert b"".join(bytes(word.bytes) for word in words).decode("utf-8", "replace") == choice.message.content
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (sample.length, 8)
    (seen,) = found.vidqa["media"]
    assert (seen["frames"], seen["tokens"], seen["width"], seen["height"]) == (4, plan.tokens, plan.width, plan.height)
    assert seen["timestamps_s"] == pytest.approx(plan.times_s, abs=1e-3)
    assert found.vidqa["truncated"] is True and found.vidqa["context_tokens"] == 4096


def test_the_model_is_listed(served: Served, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").max_model_len == 4096
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.models.retrieve("other")
    assert json.loads(served.get("/health")[1])["status"] == "ok"
    assert served.figure('vidqa_requests_total{status="200"}') > 0
    assert served.get("/nothing")[0] == 404


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI, clip: dict[str, Any]) -> None:
    question = asked(clip, QUESTION, max_tokens=16, logprobs=True)
    whole = client.chat.completions.create(**question)
    chunks = list(client.chat.completions.create(**question, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert last.usage == whole.usage and last.choices == []
    assert parts[0].vidqa["media"] == whole.vidqa["media"]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert len([part for part in parts if part.choices[0].delta.content]) > 4
    assert [part.choices[0].finish_reason for part in parts][-1] == whole.choices[0].finish_reason
    heard = [word for part in parts if part.choices[0].logprobs for word in part.choices[0].logprobs.content]
    assert [word.logprob for word in heard] == [word.logprob for word in whole.choices[0].logprobs.content]
    assert all(part.choices for part in client.chat.completions.create(**asked("Hi"), stream=True))


def test_drawn_answers_are_those_of_the_seed(client: openai.OpenAI, clip: dict[str, Any]) -> None:
    ask = partial(client.chat.completions.create, **asked(clip, QUESTION), n=3, temperature=1.0)
    with ThreadPoolExecutor(3) as pool:
        first, again, other = pool.map(lambda seed: [c.message.content for c in ask(seed=seed).choices], (5, 5, 6))
    assert first == again != other and len(set(first)) == 3
    assert [c.message.content for c in ask().choices] != [c.message.content for c in ask().choices]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_ends_an_answer_before_it(client: openai.OpenAI, clip: dict[str, Any], stream: bool) -> None:
    ask = partial(client.chat.completions.create, **asked(clip, QUESTION, max_tokens=20))
    whole = ask().choices[0].message.content
    stop = whole[7:10]
    found = ask(stop=["never said", stop], stream=stream)
    if stream:
        parts = [chunk.choices[0] for chunk in found]
        text, reason = "".join(part.delta.content or "" for part in parts), parts[-1].finish_reason
    else:
        text, reason = found.choices[0].message.content, found.choices[0].finish_reason
        assert found.usage.completion_tokens < 20
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_answers_keep_to_their_form(client: openai.OpenAI, clip: dict[str, Any]) -> None:
    ask = partial(client.chat.completions.create, **asked(clip, QUESTION, max_tokens=60), temperature=1.5)
    schema = {"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}
    schema |= {"additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "door", "schema": schema, "strict": True}}
    assert set(json.loads(ask(response_format=form).choices[0].message.content)) == {"open"}
    for extra in ({"guided_choice": ["yes", "no way"]}, {"structured_outputs": {"choice": ["yes", "no way"]}}):
        found = ask(extra_body=extra, n=4)
        assert {choice.message.content for choice in found.choices} <= {"yes", "no way"}
        assert all(choice.finish_reason == "stop" for choice in found.choices)


def test_media_come_from_allowed_places(served: Served, client: openai.OpenAI, elsewhere: int) -> None:
    clip = served.data / "videos/0.mp4"
    places = [data_url(clip), clip.as_uri(), f"http://127.0.0.1:{elsewhere}/clip.mp4"]
    found = [client.chat.completions.create(**asked(video(url), QUESTION)) for url in places]
    assert len({each.choices[0].message.content for each in found}) == 1
    assert len({json.dumps(each.vidqa) for each in found}) == 1
    picture = image(data_url(served.data / "images/0.png", "image/png"))
    both = client.chat.completions.create(**asked("First", picture, "then", video(places[0]), "what?"))
    assert [each["kind"] for each in both.vidqa["media"]] == ["image", "video"]


def test_frames_are_those_that_are_asked_for(client: openai.OpenAI, clip: dict[str, Any]) -> None:
    for asked_for, frames in (({"nframes": 6}, 6), ({"fps": 1.5}, 4), ({"total_pixels": 4096}, 4)):
        found = client.chat.completions.create(**asked(clip, QUESTION), extra_body={"mm_processor_kwargs": asked_for})
        assert found.vidqa["media"][0]["frames"] == frames


def test_keys_beside_a_medium_are_its_own(client: openai.OpenAI, clip: dict[str, Any]) -> None:
    def frames(*media: dict[str, Any], **options: Any) -> list[int]:
        found = client.chat.completions.create(**asked(*media, QUESTION), **options)
        return [each["frames"] for each in found.vidqa["media"]]

    assert frames({**clip, "nframes": 6}, clip, {**clip, "fps": 1.5}) == [6, 4, 4]
    assert frames({**clip, "nframes": 2}, clip, extra_body={"mm_processor_kwargs": {"nframes": 6}}) == [2, 6]
    for keys, message in (
        ({"fps": 1.0, "nframes": 2}, "exclude each other"),
        ({"frames": 2}, "Extra inputs"),
        ({"resized_height": 64}, "resized_width"),
        ({"max_frames": 2}, "nframes is"),
        ({"video_start": 900.0}, "no frame is between"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            frames({**clip, **keys})


def test_what_is_longer_than_the_context_is_refused_with_numbers(client: openai.OpenAI, clip: dict[str, Any]) -> None:
    usual = client.chat.completions.create(**asked(clip, QUESTION)).usage.prompt_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked(clip, QUESTION) | {"max_tokens": 4096})
    assert refused.value.code == "SAMPLE_TOO_LONG"
    assert f"{usual} tokens" in refused.value.message and "4096 allowed" in refused.value.message
    with pytest.raises(openai.BadRequestError, match="video or image") as refused:
        client.chat.completions.create(**asked(clip, clip), extra_body={"mm_processor_kwargs": {"nframes": 768}})
    assert refused.value.code == "SAMPLE_TOO_LONG"


def test_a_conversation_goes_on(client: openai.OpenAI, clip: dict[str, Any]) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *asked(clip, QUESTION)["messages"]]
    first = client.chat.completions.create(model="tiny", messages=messages)
    messages += [first.choices[0].message, {"role": "user", "content": "Why?"}]
    second = client.chat.completions.create(model="tiny", messages=messages)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens and second.vidqa["max_tokens"] == 24


def test_a_client_that_leaves_frees_its_place(served: Served, client: openai.OpenAI, clip: dict[str, Any]) -> None:
    stream = client.chat.completions.create(**asked(clip, QUESTION) | HOLD, stream=True)
    next(iter(stream))
    assert served.figure("vidqa_requests_running") == 1
    stream.close()
    served.wait_for("vidqa_requests_running", 0)

    body = json.dumps(asked(clip, QUESTION) | {"max_tokens": 3500, **HOLD["extra_body"]})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    killed = subprocess.Popen([sys.executable, "-c", LEAVING], stdin=subprocess.PIPE, text=True)
    killed.stdin.write(json.dumps([f"http://127.0.0.1:{served.port}/v1/chat/completions", body, headers]))
    killed.stdin.close()
    served.wait_for("vidqa_requests_running", 1)
    killed.kill()
    killed.wait()
    served.wait_for("vidqa_requests_running", 0)
    before = served.figure("vidqa_answer_tokens_total")
    assert client.chat.completions.create(**asked(clip, QUESTION)).choices
    assert served.figure("vidqa_answer_tokens_total") == before + 8


def test_more_requests_than_have_room_are_turned_away(served: Served, clip: dict[str, Any]) -> None:
    bodies = [asked(QUESTION) | {"max_tokens": 3500, **HOLD["extra_body"]} for _ in range(5)]
    held = [served.send(body) for body in bodies]  # three are answered at a time, two may wait
    served.wait_for("vidqa_requests_running", 5)
    status, said = served.post(asked(clip, QUESTION))
    assert (status, said["error"]["code"]) == (429, "SERVE_BUSY")
    for connection in held:
        connection.close()
    served.wait_for("vidqa_requests_running", 0)
    assert served.post(asked(clip, QUESTION))[0] == 200


def test_a_slow_video_keeps_nobody_else_waiting(served: Served, clip: dict[str, Any]) -> None:
    assert served.post(asked(clip, QUESTION))[0] == 200  # its workers run
    stopped = workers_of(served.process.pid)
    assert stopped
    other = video(data_url(served.data / "videos/2.mp4"))
    with ThreadPoolExecutor(1) as pool:
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            slow = pool.submit(served.post, asked(other, QUESTION))
            served.wait_for("vidqa_requests_running", 1)
            assert served.post(asked(QUESTION))[0] == 200 and not slow.done()
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert slow.result()[0] == 200


class Failing:
    """A session whose model fails at its first request, as one without memory does."""

    def generate(self, requests: Iterator[Request | None]) -> Iterator[list[Any]]:
        assert next(requests) is not None
        raise RuntimeError("out of memory")
        yield []

    def close(self) -> None:
        return


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_model_that_fails_ends_the_server_and_every_answer(served: Served) -> None:
    planner = Planner(served.model, SimpleNamespace(nframes=4), Prompting(for_generation=True))
    samples, _ = planner.plan([Record("r", (Turn("user", ("Hi",)),))])
    codes: list[str] = []
    with closing(FrameSource(1, 60, None)) as source:
        backend = EngineThread(Failing, planner, source, longest=4096, batch_size=2)
        backend.ended = lambda: codes.append("ended")

        def submit(name: str) -> None:
            request = Request(name, planner.encode(samples[0]).token_ids, Sampling(8), ())
            backend.submit(samples[0], request, lambda result: codes.append(result.problems[0].code))

        submit("first")
        submit("waiting")
        backend.start()
        backend.join(60)
        assert backend.has_failed and not backend.is_answering
        submit("late")
        backend.close()
    assert codes == ["SERVE_FAILED", "SERVE_FAILED", "ended", "SERVE_STOPPING"]


def test_a_server_that_is_told_to_end_does_so_in_order_whatever_runs(
    served: Served, client: openai.OpenAI, elsewhere: int
) -> None:
    """The last test: no other has a server after it. A download waits for a host that is silent for longer than the
    server's grace."""
    silent = served.send(asked(video(f"http://127.0.0.1:{elsewhere}/silent"), "What?"))
    stream = client.chat.completions.create(**asked("Hi") | HOLD, stream=True)
    next(iter(stream))
    began = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60) == 0
    assert time.monotonic() - began < GRACE_S + LAST_S + 5
    silent.close()
    assert list(served.log.parent.glob("vidqa-media-*")) == []
    said = served.log.read_text()
    assert "Traceback" not in said and KEY not in said
