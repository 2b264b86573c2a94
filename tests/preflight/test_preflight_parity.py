"""What preflight counts is what a real training run writes down and leaves on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_world import run_engine, tiny_data, tiny_model, tiny_spec
from vidqa.families.weights import parameters_by_name
from vidqa.preflight.report import preflight

FROZEN = {"policy.freeze_pattern": ["visual"], "train.ckpt.max_keep": 2, "train.epoch": 2}
LORA = {"policy.lora.r": 4, "policy.lora.target_modules": "all-linear", "policy.lora.modules_to_save": ["embed_tokens"]}


@pytest.mark.parametrize("way", [FROZEN, LORA], ids=["vision tower frozen", "LoRA"])
def test_the_run_agrees_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]) -> None:
    """In both ways what trains is less than what is exported, or than the base model."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=3)
    chosen = {"train.train_policy.dataset.test_size": 2, "validation.enable": True, **way}
    path = tiny_spec(tmp_path, model, root, chosen)
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
    exports, checkpoints = sorted((run / "safetensors").glob("epoch_*")), sorted((run / "checkpoints").glob("epoch_*"))
    assert 1 <= len(exports) <= facts["saves_kept"] >= len(checkpoints) == chosen.get("train.epoch", 1)
    assert sum(parameters_by_name(exports[-1]).values()) * 4 == facts["export_bytes"]
    assert stored_bytes(checkpoints[-1]) == facts["checkpoint_bytes"] < 3 * 4 * facts["parameters"]
    # What the files hold besides: safetensors headers, DCP's index.
    (weights,) = exports[-1].glob("*.safetensors")
    assert 0 <= weights.stat().st_size - facts["export_bytes"] < 60_000


def stored_bytes(checkpoint: Path) -> int:
    """Bytes of the tensors in a checkpoint, the optimizer's step counters left out."""
    from torch.distributed.checkpoint import FileSystemReader

    saved = FileSystemReader(checkpoint / "policy").read_metadata().state_dict_metadata
    tensors = {name: entry for name, entry in saved.items() if hasattr(entry, "properties")}
    return sum(
        math.prod(entry.size) * entry.properties.dtype.itemsize
        for name, entry in tensors.items()
        if not name.endswith(".step")
    )
