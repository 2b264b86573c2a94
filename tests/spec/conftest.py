"""Layers that every spec test starts from: the data paths without which no spec is whole."""

from __future__ import annotations

import pytest

from vidqa.spec import Layer


@pytest.fixture
def data() -> Layer:
    return Layer(
        "data",
        {"custom.train_dataset.annotation_path": "/d/a.json", "custom.train_dataset.media_path": "/d"},
    )


@pytest.fixture
def eval_data() -> Layer:
    return Layer("data", {"dataset.annotation_path": "/d/a.json", "dataset.media_dir": "/d"})
