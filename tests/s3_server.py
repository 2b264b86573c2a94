"""Fixtures: a real S3 server on this machine, and an empty bucket for each test."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = shutil.which("moto_server", path=str(Path(sys.executable).parent))


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if SERVER is None:
        pytest.skip("moto[server] is not installed")
    pytest.importorskip("s3fs")
    # The server chooses its port itself: a free port found beforehand may be taken a moment later.
    log = tmp_path_factory.mktemp("s3") / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", "0"], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 600
        while not (running := re.search(r"Running on (http://127.0.0.1:\d+)", log.read_text())):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield running[1]
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="session")
def s3_files(s3_endpoint: str) -> Iterator[Any]:
    """The file system of the server. The description of S3 is read once for it and all that the tests open."""
    import botocore.loaders
    import s3fs

    keys = {"key": "test-key", "secret": "test-secret", "endpoint_url": s3_endpoint}
    loader = botocore.loaders.create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", lambda *_: loader)
        yield s3fs.S3FileSystem(**keys, skip_instance_cache=True, use_listings_cache=False)


@pytest.fixture
def bucket(s3_endpoint: str, s3_files: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of the server with a bucket "lake", configured in the environment, too."""
    names = {
        "ENDPOINT_URL": s3_endpoint,
        "ACCESS_KEY_ID": "test-key",
        "SECRET_ACCESS_KEY": "test-secret",
        "DEFAULT_REGION": "us-east-1",
    }
    for name, value in names.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3_files.mkdir("lake")
    yield s3_files
    s3_files.rm("lake", recursive=True)
