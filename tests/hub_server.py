"""A local HTTP server with enough of the Hugging Face hub's API to serve one small model folder, or to refuse it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The server. `refuse` is the status of every answer (None: serve; 0: no answer), `refuse_times` times at most."""

    daemon_threads = True
    refuse: int | None = None
    refuse_files: int | None = None
    refuse_times = 10**9
    gated_to: str | None = None  # the only token that may read files
    kind, name = "model", "org/tiny"
    cut_after: int | None = None  # bytes of a file after which the connection ends, once
    damaged = False  # sends other bytes than the listing promises, of the same length
    listed: Sequence[object] = ()  # entries of the listing besides the files of the folder
    commit: object = COMMIT

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder = folder
        self.requests: list[str] = []
        self.closing = threading.Event()

    @property
    def prefix(self) -> str:
        return "" if self.kind == "model" else f"/{self.kind}s"

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
        elif path.startswith(f"/api/{hub.kind}s/{hub.name}/tree/"):
            self.reply(200, json.dumps(self.tree()).encode())
        elif path.startswith(f"/api/{hub.kind}s/{hub.name}"):
            self.reply(200, json.dumps(self.info()).encode())
        elif (own := f"{hub.prefix}/{hub.name}/resolve/") and path.startswith(own):
            self.file(unquote(path.removeprefix(own).split("/", 1)[1]))
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
        return {
            "id": self.server.name,
            "sha": self.server.commit,
            "gated": gated,
            "private": False,
            "siblings": siblings,
            "tags": [],
        }

    def tree(self) -> list[object]:
        files = sorted(p for p in self.server.folder.rglob("*") if p.is_file())
        root = self.server.folder
        entries = [
            {"type": "file", "path": str(p.relative_to(root)), "size": p.stat().st_size, "oid": etag(p), **lfs(p)}
            for p in files
        ]
        return [*entries, *self.server.listed]

    def file(self, name: str) -> None:
        path = self.server.folder / name
        if not path.is_file():
            self.reply(404, b"", **{"X-Error-Code": "EntryNotFound"})
            return
        content, first = path.read_bytes(), 0
        if self.server.damaged:
            content = bytes(len(content))
        headers = {"ETag": f'"{lfs(path)["lfs"]["oid"] if lfs(path) else etag(path)}"', "X-Repo-Commit": COMMIT}
        if (asked := self.headers.get("range")) and self.command == "GET":
            first = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self.reply(206 if first else 200, content[first:], **headers)

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            cut = self.server.cut_after if "/resolve/" in self.path else None
            self.wfile.write(body[:cut])
            if cut is not None and cut < len(body):
                self.server.cut_after, self.close_connection = None, True

    def log_message(self, *ignored: object) -> None:
        """Print nothing, to keep the output of tests quiet."""


def lfs(path: Path) -> dict:
    """The entry of a listing for a large file."""
    if path.suffix not in (".mp4", ".gz", ".tar", ".zip", ".parquet"):
        return {}
    return {
        "lfs": {"oid": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size, "pointerSize": 9}
    }


def etag(path: Path) -> str:
    """The hash of a file in git."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serving(folder: Path, kind: str = "model", name: str = "org/tiny") -> Iterator[Hub]:
    hub = Hub(folder)
    hub.kind, hub.name = kind, name
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        hub.shutdown()
        hub.server_close()
