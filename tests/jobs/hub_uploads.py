"""A local HTTP server that takes uploads as the Hugging Face hub does: create, preupload, LFS batch, commit, tree."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import yaml

LARGE = 1000  # bytes from which a file goes through LFS


class Hub(ThreadingHTTPServer):
    """Repositories by name. `token` is the one that may write; `refuse` says which status a request gets, by a part of
    its path; with `damage` the tree shows other bytes than those that arrived."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.token = "hf_writer"
        self.repos: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}  # LFS, by SHA-256
        self.requests: list[str] = []
        self.refuse: dict[str, int] = {}
        self.damage = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def make(self, name: str, private: bool) -> dict[str, Any]:
        return self.repos.setdefault(name, {"private": private, "files": {}, "commits": 0})


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_GET

    def answer(self) -> None:
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub = self.server
        hub.requests.append(f"{self.command} {path}")
        refused = next((status for part, status in hub.refuse.items() if part in path), None)
        if refused:
            return self.reply(refused, {"error": "refused by the test"})
        if path.startswith("/objects/"):
            hub.objects[path.rpartition("/")[2]] = body
            return self.reply(200, {})
        if f"Bearer {hub.token}" != self.headers.get("authorization"):
            return self.reply(401, {"error": "Invalid username or password."})
        for pattern, act in self.ROUTES:
            found = re.fullmatch(pattern, f"{self.command} {path}")
            if found:
                return act(self, body, *found.groups())
        self.reply(404, {"error": f"no route {path}"})

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        there = name in self.server.repos
        self.server.make(name, asked.get("visibility") == "private" or bool(asked.get("private")))
        self.reply(409 if there else 200, {"url": f"{self.server.url}/{name}", "name": name})

    def info(self, body: bytes, name: str) -> None:
        repo = self.server.repos.get(name)
        if repo is None:
            return self.reply(404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
        self.reply(200, {"id": name, "private": repo["private"], "sha": "0" * 40, "siblings": [], "tags": []})

    def validate(self, body: bytes) -> None:
        """The settings at the top of a model card: a table, if there are any."""
        _, _, rest = json.loads(body)["content"].partition("---\n")
        wrong = not isinstance(yaml.safe_load(rest.partition("\n---")[0] or "{}"), dict)
        self.reply(400 if wrong else 200, {"errors": [{"message": "no table"}] * wrong, "warnings": []})

    def preupload(self, body: bytes, name: str) -> None:
        kinds = [
            {"path": each["path"], "uploadMode": "lfs" if each["size"] >= LARGE else "regular", "shouldIgnore": False}
            for each in json.loads(body)["files"]
        ]
        self.reply(200, {"files": kinds})

    def batch(self, body: bytes, name: str) -> None:
        objects = []
        for each in json.loads(body)["objects"]:
            upload = {"upload": {"href": f"{self.server.url}/objects/{each['oid']}", "header": {}}}
            objects.append({**each, **({} if each["oid"] in self.server.objects else {"actions": upload})})
        self.reply(200, {"transfer": "basic", "objects": objects})

    def commit(self, body: bytes, name: str) -> None:
        repo = self.server.repos[name]
        for line in map(json.loads, body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                repo["files"][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repo["files"][value["path"]] = self.server.objects[value["oid"]]
        repo["commits"] += 1
        oid = f"{repo['commits']:040x}"
        self.reply(200, {"commitUrl": f"{self.server.url}/{name}/commit/{oid}", "commitOid": oid, "hookOutput": ""})

    def tree(self, body: bytes, name: str) -> None:
        found = []
        for path, content in self.server.repos[name]["files"].items():
            if self.server.damage:
                content = content[:-1] + b"?"
            sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": sha1}
            if len(content) >= LARGE:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            found.append(entry)
        self.reply(200, found)

    ROUTES = (
        (r"POST /api/repos/create", create),
        (r"GET /api/models/([^/]+/[^/]+)", info),
        (r"GET /api/models/([^/]+/[^/]+)/revision/main", info),
        (r"POST /api/validate-yaml", validate),
        (r"POST /api/models/([^/]+/[^/]+)/preupload/main", preupload),
        (r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch", batch),
        (r"POST /api/models/([^/]+/[^/]+)/commit/main", commit),
        (r"GET /api/models/([^/]+/[^/]+)/tree/\w+", tree),
    )

    def reply(self, status: int, body: Any, **headers: str) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *ignored: object) -> None:
        """The test run's output stays quiet."""


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
