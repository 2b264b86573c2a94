"""What a run keeps: its best export, checkpoints that are whole, and nothing in them that a loader would carry out."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import events, train_here
from tiny_world import tiny_data, tiny_model, tiny_spec

STEPS = 6
OPTIONS = {
    "train.max_num_steps": STEPS,
    "train.epoch": STEPS,
    "train.train_batch_per_replica": 3,
    "train.optm_lr": 1e-4,
    "train.epsilon": 1e-6,
    "train.ckpt.save_freq": 2,
    "train.ckpt.save_freq_in_epoch": 0,
    "validation.enable": True,
    "validation.freq": 2,
    "train.train_policy.dataset.test_size": 0.3,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model folder with code in it, a small data set, and an uninterrupted run under umask 077."""
    folder = tmp_path_factory.mktemp("saving")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder, clips=2))
    (place.model / "modeling_own.py").write_text("raise SystemExit('this must not run')\n")
    config = json.loads((place.model / "config.json").read_text())
    (place.model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling_own.Own"}}))
    before = os.umask(0o077)
    try:
        place.reference = train_here(spec_of(place, "reference"), folder / "reference/run")
    finally:
        os.umask(before)
    return place


def spec_of(world: SimpleNamespace, name: str, **over: Any) -> Path:
    folder = world.folder / name
    folder.mkdir(exist_ok=True)
    cache = {"engine.frame_cache_dir": str(world.folder / "cache")}
    return tiny_spec(folder, world.model, world.root, {**OPTIONS, **cache, **over})


def facts(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_an_export_holds_no_code_and_asks_for_none(world: SimpleNamespace) -> None:
    export = (world.reference / "best").resolve()
    assert not list(export.rglob("*.py"))
    assert "auto_map" not in facts(export / "config.json")
    assert facts(export / "config.json")["model_type"] == "qwen3_vl"
    kept = {path.name for path in world.model.iterdir() if path.suffix != ".py"}
    assert kept <= {path.name for path in export.iterdir()}


def test_what_a_run_writes_is_for_those_whom_the_umask_lets_in(world: SimpleNamespace) -> None:
    open_to_others = [
        str(path.relative_to(world.reference))
        for path in world.reference.rglob("*")
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert open_to_others == []
    assert events(world.reference, "train/loss").keys() == set(range(1, STEPS + 1))
