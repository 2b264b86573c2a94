"""Pairs of a right and a wrong answer in the tiny world, two or more about each clip, one about text alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_world import tiny_data, tiny_model, tiny_spec

WRONG = ("No, not at all.", "A", "nothing")
DPO = {
    "engine.objective": "dpo",
    "engine.dpo_beta": 0.5,
    "train.train_batch_per_replica": 7,
    "train.epoch": 2,
    "train.optm_lr": 1e-3,
    "validation.enable": False,
    "train.ckpt.export_safetensors": False,
}


def pair_world(folder: Path) -> tuple[Path, Path]:
    """Model and data: 12 pairs about 6 clips, one about an image, one about text."""
    model, root = tiny_model(folder), tiny_data(folder)
    file = root / "annotations.json"
    rows = json.loads(file.read_text())
    for number, row in enumerate(rows):
        row["rejected"] = f"{WRONG[number % 3]} {number}"
    file.write_text(json.dumps(rows))
    return model, root


def pair_spec(folder: Path, world: tuple[Path, Path], **over: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return tiny_spec(folder, *world, {**DPO, **over})
