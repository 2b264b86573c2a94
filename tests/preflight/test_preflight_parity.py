"""What preflight counts is what a real training run writes down and leaves on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.tiny_world import run_engine, tiny_data, tiny_model, tiny_spec
from vidqa.preflight.report import preflight
from vidqa.preflight.weights import parameters_by_name


def test_the_run_agrees_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the vision tower frozen, so that what trains is less than what is exported."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=3)
    chosen = {"train.epoch": 2, "train.train_policy.dataset.test_size": 2, "validation.enable": True}
    path = tiny_spec(tmp_path, model, root, {**chosen, "policy.freeze_pattern": ["visual"]})
    facts = preflight(path, "local").facts
    run = tmp_path / "run"
    run_engine("train", path, run)
    plan = json.loads((run / "plan.json").read_text())
    assert facts["train"]["samples"] == plan["train_samples"]
    assert facts["validation"]["samples"] == plan["validation_samples"]
    assert facts["train"]["tokens"] == plan["train_tokens_per_epoch"]
    assert facts["train"]["supervised_tokens"] == plan["supervised_tokens_per_epoch"]
    assert facts["train"]["tokens_per_sample"]["most"] == plan["longest_sample_tokens"]
    for name in ("total_steps", "steps_per_epoch", "warmup_steps", "effective_batch"):
        assert facts[name] == plan[name], name
    (export,) = (run / "safetensors").glob("epoch_2")
    assert sum(parameters_by_name(export).values()) * 4 == facts["export_bytes"]
    from torch.distributed.checkpoint import FileSystemReader

    saved = FileSystemReader(run / "checkpoints" / "epoch_2" / "policy").read_metadata().state_dict_metadata
    tensors = {name: entry for name, entry in saved.items() if hasattr(entry, "properties")}
    stored = sum(
        math.prod(entry.size) * entry.properties.dtype.itemsize
        for name, entry in tensors.items()
        if not name.endswith(".step")
    )
    assert stored == facts["checkpoint_bytes"] < 3 * facts["export_bytes"]
