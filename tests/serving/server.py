"""A real server on the tiny model, and what tests ask it with: OpenAI's own client, and plain HTTP for the rest."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from vidqa.core.cli import SKILL_ROOT

KEY = "a-key-that-no-log-may-hold"
READY_S = 180
LONG = {"type": "string", "minLength": 100_000}  # an answer that ends at its bound alone


@dataclass(frozen=True)
class Served:
    """A server that runs: its process, port, log, and the folders that it was given."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    model: Path
    data: Path
    key: str

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"api_key": self.key or "none", "max_retries": 0, "timeout": 120} | options
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", **options)

    def post(self, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """The status and the object that a body is answered with; bytes and text are sent as they are."""
        answer = self.send(body, **headers).getresponse()
        return answer.status, json.loads(answer.read())

    def send(self, body: Any, **headers: str) -> http.client.HTTPConnection:
        """A connection over which a body has been sent."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        head |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/chat/completions", raw, head)
        return connection

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def figure(self, name: str) -> float:
        """A figure of /metrics."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_for(self, name: str, value: float) -> None:
        """Until a figure has this value."""
        deadline = time.monotonic() + 300
        while (found := self.figure(name)) != value:
            assert time.monotonic() < deadline, f"{name} stays {found}"
            time.sleep(0.02)


@contextmanager
def serving(folder: Path, model: Path, data: Path, *words: str, key: str = KEY) -> Iterator[Served]:
    """A server by scripts/serve.py, ended with SIGTERM."""
    log = folder / "server.log"
    sets = {"model.dtype": "float32", "model.max_length": 4096, "vision.nframes": 4, "inference.batch_size": 3}
    sets |= {"engine.frame_cache_dir": folder / "cache", "engine.decode_workers": 1, "generation.max_tokens": 24}
    given = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, str(SKILL_ROOT / "scripts/serve.py"), "--model", str(model), "--name", "tiny"]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)}
    variables = variables | {"VIDQA_API_KEY": key} if key else variables
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", "0", *given, *words], stdout=file, stderr=file, env=variables, cwd=folder
        )
    try:
        deadline = time.monotonic() + READY_S
        while not (found := re.search(r"answers at http://127\.0\.0\.1:(\d+)/v1", log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        served = Served(process, int(found[1]), log, model, data, key)
        while not _answers(served):
            time.sleep(0.02)
        yield served
    finally:
        process.terminate()
        process.wait(60)


def _answers(served: Served) -> bool:
    try:
        return served.get("/health")[0] == 200
    except OSError:
        return False


def data_url(path: Path, kind: str = "video/mp4") -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def video(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def asked(*parts: Any, **more: Any) -> dict[str, Any]:
    """A request of one user message."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}
