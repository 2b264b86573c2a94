"""A small real data set, a tiny real model, and a spec that passes preflight."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clips import write_clip
from tests.programs import run_here
from vidqa.core.cli import SKILL_ROOT
from vidqa.data.storage import hub
from vidqa.engine.families.tiny_qwen3_vl import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The hub cannot be reached, nothing is kept of it, and the disk has room for any model."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(hub, "PAUSES_S", ())
    cache = tmp_path_factory.mktemp("hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    roomy = shutil.disk_usage(cache)._replace(free=10**14)
    monkeypatch.setattr("shutil.disk_usage", lambda _: roomy)


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for number in range(6):
        write_clip(folder / f"{number}.mp4", frames=16 + number, fps=8)
    return folder


@pytest.fixture
def media(tmp_path: Path, clips: Path) -> Path:
    """The test's own copy of the clips, to break."""
    shutil.copytree(clips, tmp_path / "media")
    return tmp_path / "media"


def records(numbers: range, per_video: int = 2) -> list[dict]:
    return [
        {
            "id": f"clip{number}-{question}",
            "video": f"{number}.mp4",
            "conversations": [
                {"from": "human", "value": f"<video>\nIs it {question}?"},
                {"from": "gpt", "value": "yes" if question % 2 else "no"},
            ],
        }
        for number in numbers
        for question in range(per_video)
    ]


@pytest.fixture
def write_spec(tmp_path: Path, media: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a train spec over two sets of records; `more` is laid over it as dotted keys."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("VIDQA_STATE_DIR", str(tmp_path / "state"))

    def write(train: list[dict] | None = None, validation: list[dict] | None = None, **more: object) -> Path:
        (tmp_path / "train.json").write_text(json.dumps(records(range(4)) if train is None else train))
        (tmp_path / "val.json").write_text(json.dumps(records(range(4, 6)) if validation is None else validation))
        keys: dict[str, object] = {
            "custom.train_dataset.annotation_path": str(tmp_path / "train.json"),
            "custom.train_dataset.media_path": str(media),
            "custom.val_dataset.annotation_path": str(tmp_path / "val.json"),
            "custom.val_dataset.media_path": str(media),
            "custom.vision.nframes": 4,
            "policy.model_name_or_path": str(tiny_model),
            "policy.model_max_length": 4096,
            "policy.parallelism.dp_shard_size": 2,
            "train.train_batch_per_replica": 2,
            "train.output_dir": str(tmp_path / "runs"),
            "validation.enable": True,
            **more,
        }
        path = tmp_path / "spec.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items() if value is not None))
        return path

    return write


def script(name: str, *words: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON object and errors of a script, which runs in this process."""
    command = [sys.executable, str(SKILL_ROOT / f"scripts/{name}.py"), *map(str, words), "--json"]
    done = run_here(command, cwd=Path.cwd())
    return done.returncode, json.loads(done.stdout), done.stderr
