"""A local HTTP server that speaks enough of the Hugging Face hub to serve one small model folder, or to refuse it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """`refuse` is the status of every answer (None: serve; 0: keep silent); `refuse_times` limits how often."""

    daemon_threads = True
    refuse: int | None = None
    refuse_files: int | None = None
    refuse_times = 10**9
    gated_to: str | None = None  # the one token that may read files

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder = folder
        self.requests: list[str] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def respond(self) -> None:
        hub, path = self.server, self.path.split("?")[0]
        hub.requests.append(f"{self.command} {path}")
        refusal = hub.refuse_files if "/resolve/" in path and hub.refuse is None else hub.refuse
        if refusal is not None and hub.refuse_times > 0:
            hub.refuse_times -= 1
            self.refuse(refusal)
        elif path.endswith("/auth-check"):
            allowed = hub.gated_to in (self.headers.get("authorization") or "").split()
            self.reply(200, b"{}") if allowed else self.reply(403, b"", **{"X-Error-Code": "GatedRepo"})
        elif path.startswith("/api/models/org/tiny/tree/"):
            self.reply(200, json.dumps(self.tree()).encode())
        elif path.startswith("/api/models/org/tiny"):
            self.reply(200, json.dumps(self.info()).encode())
        elif path.startswith("/org/tiny/resolve/"):
            self.file(path.split("/", 5)[5])
        else:
            self.reply(404, b"", **{"X-Error-Code": "RepoNotFound"})

    def refuse(self, status: int) -> None:
        if status == 0:
            self.server.closing.wait(30)
            self.close_connection = True
            return
        self.reply(status, b"{}")

    def info(self) -> dict:
        siblings = [{"rfilename": p.name} for p in sorted(self.server.folder.iterdir())]
        gated = "manual" if self.server.gated_to else False
        return {"id": "org/tiny", "sha": COMMIT, "gated": gated, "private": False, "siblings": siblings, "tags": []}

    def tree(self) -> list[dict]:
        files = sorted(p for p in self.server.folder.rglob("*") if p.is_file())
        root = self.server.folder
        return [
            {"type": "file", "path": str(p.relative_to(root)), "size": p.stat().st_size, "oid": etag(p)} for p in files
        ]

    def file(self, name: str) -> None:
        path = self.server.folder / name
        if not path.is_file():
            self.reply(404, b"", **{"X-Error-Code": "EntryNotFound"})
            return
        self.reply(200, path.read_bytes(), **{"ETag": f'"{etag(path)}"', "X-Repo-Commit": COMMIT})

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *ignored: object) -> None:
        """The test run's output stays quiet."""


def etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        hub.shutdown()
        hub.server_close()
