"""Ranks that share the rows of their packs: loss, gradients and trained weights are those of one rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import torch
from safetensors.torch import load_file
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.core.run_folder import read_metrics

PROGRAM = Path(__file__).with_name("context_ranks.py")
TORCHRUN = [sys.executable, "-m", "vidqa.engine.torchrun", "--standalone"]
STEPS = 6
OPTIONS: dict[str, Any] = {
    "train.epoch": 3,
    "train.optm_lr": 1e-4,
    "train.epsilon": 1e-6,
    "train.ckpt.save_freq": 2,
    "train.ckpt.save_freq_in_epoch": 0,
    "validation.enable": True,
    "train.train_policy.dataset.test_size": 0.1,
}
LORA = {
    "policy.lora.r": 4,
    "policy.lora.lora_dropout": 0.0,
    "policy.lora.target_modules": ["q_proj", "v_proj", "attn.qkv", "up_proj"],
}
ANSWERS = {"engine.validation_generate": 2, "engine.validation_max_tokens": 4}
SHARED = {"engine.share_video_prefix": True, "engine.recompute": "none", "engine.pack_tokens": 900}


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_two_ranks_have_the_loss_and_the_gradient_of_one(tmp_path: Path, family: str) -> None:
    """In packs of several samples, of one, of text and of nothing, with shared videos, whatever is recomputed, and
    nearly with products in 8-bit floats."""
    model, root, out = tiny_model(tmp_path, family), tiny_data(tmp_path), tmp_path / "rows.json"
    done = forked.run([*TORCHRUN, "--nproc-per-node", "2", str(PROGRAM), str(model), str(root), str(out)], timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(out.read_text())
    assert len({(row["share"], row["rounded"], row["way"]) for row in rows}) == 7
    for row in rows:
        # With 8-bit floats each rank scales its own rows.
        most = (0.01, 0.2) if row["rounded"] else (1e-6, 1e-5)
        assert row["loss"] < most[0] and row["gradient"] < most[1], row
        (whole_rows, patches, supervised), parts = row["whole"], row["parts"]
        # Rows are halved, up to padding; a frame on the border is computed twice, and a blank one where there is none.
        assert parts[0][0] == parts[1][0] and 0 <= 2 * parts[0][0] - whole_rows <= 6
        assert max(part[1] for part in parts) < 0.8 * patches and sum(part[2] for part in parts) == supervised


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("context")
    return SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder))


def trained(world: SimpleNamespace, name: str, data: int, context: int, **over: Any) -> Path:
    """The run of an effective batch of 6 on so many contexts of so many ranks."""
    (world.folder / name).mkdir()
    mesh = {"policy.parallelism.dp_shard_size": data, "policy.parallelism.cp_size": context}
    options = {**OPTIONS, **mesh, "train.train_batch_per_replica": 6 // data, **over}
    spec = tiny_spec(world.folder / name, world.model, world.root, options)
    run_engine("train", spec, world.folder / name / "run", ranks=data * context)
    return world.folder / name / "run"


def assert_same_run(ours: Path, theirs: Path, file: str) -> None:
    found, expected = losses(ours), losses(theirs)
    assert found == pytest.approx(expected[-len(found) :], rel=1e-5) and len(expected) == STEPS
    (one, *_), (other, *_) = (
        [event["val/avg_loss"] for event in read_metrics(run / "metrics.jsonl") if "val/avg_loss" in event][::-1]
        for run in (ours, theirs)
    )
    assert one == pytest.approx(other, rel=1e-5)
    weights, reference = (load_file(run / f"safetensors/step_{STEPS}" / file) for run in (ours, theirs))
    assert weights.keys() == reference.keys()
    for key, tensor in reference.items():
        torch.testing.assert_close(weights[key], tensor, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_contexts_of_two_ranks_train_as_one_rank_does(world: SimpleNamespace) -> None:
    """Every layer recomputed; validated, answered and saved on the way, and the export proved."""
    reference, ours = (trained(world, *of, **ANSWERS) for of in (("one", 1, 1), ("four", 2, 2)))
    assert losses(ours)[0] == pytest.approx(losses(reference)[0], rel=1e-6)
    assert_same_run(ours, reference, "model.safetensors")
    proof = json.loads((ours / "best/proof.json").read_text())
    assert proof["reloaded_loss"] == pytest.approx(proof["trainer_loss"], rel=1e-5)
    speeds = [
        [
            event["perf/tokens_per_s"] * event["perf/step_s"]
            for event in read_metrics(run / "metrics.jsonl")
            if "perf/step_s" in event
        ]
        for run in (ours, reference)
    ]
    assert speeds[0] == pytest.approx(speeds[1])  # a token counts once, whoever has a part of its pack


@pytest.mark.slow
def test_adapters_with_shared_videos_go_on_in_a_context(world: SimpleNamespace) -> None:
    """From a checkpoint of one rank on two ranks, which end where the one rank does."""
    reference = trained(world, "alone", 1, 1, **LORA, **SHARED)
    resume = {"train.resume": str(reference / "checkpoints/step_2")}
    ours = trained(world, "together", 1, 2, **LORA, **SHARED, **resume)
    assert len(losses(ours)) == STEPS - 2
    assert_same_run(ours, reference, "adapter_model.safetensors")
