"""Lets every test import the shared makers of clips and tiny models, and keeps tests out of the user's folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from s3_server import bucket, s3_endpoint  # noqa: F401  (fixtures)


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job records and caches of a test stay in its own temporary folder."""
    home = tmp_path_factory.mktemp("vidqa-home")
    monkeypatch.setenv("VIDQA_STATE_DIR", str(home / "state"))
    monkeypatch.setenv("VIDQA_CACHE_DIR", str(home / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # tests share few cores with the processes they start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: short ones fill up the end, where one process would wait for the others."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
