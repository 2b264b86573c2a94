"""Fixtures: a real S3 server on this machine, and an empty bucket for each test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = shutil.which("moto_server", path=str(Path(sys.executable).parent))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    if SERVER is None:
        pytest.skip("moto[server] is not installed")
    pytest.importorskip("s3fs")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of the server, with a bucket named "lake"."""
    import s3fs

    names = {
        "ENDPOINT_URL": s3_endpoint,
        "ACCESS_KEY_ID": "test-key",
        "SECRET_ACCESS_KEY": "test-secret",
        "DEFAULT_REGION": "us-east-1",
    }
    for name, value in names.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    files = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    files.mkdir("lake")
    yield files
    files.rm("lake", recursive=True)
