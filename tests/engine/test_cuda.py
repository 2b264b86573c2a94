"""The same engine on CUDA; never runs in CI. On a machine with GPUs: pytest tests/engine/test_cuda.py -m gpu"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rl_world import UNCHANGED, require_unchanged, rl_model, rl_spec
from tiny_world import engine_command, losses, tiny_data, tiny_model, tiny_spec
from transformers import AutoConfig, Qwen3VLForConditionalGeneration

from vidqa.engine.distributed import single_process_world
from vidqa.engine.kernels import kernels_for, plain
from vidqa.engine.training import warmup
from vidqa.jobs.platforms.engine_process import ALLOCATOR
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE
from vidqa.spec import Layer, dump, resolve

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
GPUS = torch.cuda.device_count()


# What changes speed or memory and nothing else.
OPTIONS: dict[str, dict[str, object]] = {
    "as_written": {"train.compile": False},
    "all_computed_again": {"engine.recompute": "all"},
    "gathered_again": {"train.fsdp_reshard_after_forward": "always"},
    "kept_gathered": {"train.fsdp_reshard_after_forward": "never"},
    "small_packs": {"engine.pack_tokens": 400},
    "not_packed": {"engine.packing": False},
    "frames_not_kept": {"engine.frame_cache_gb": 0},
    "saved_at_once": {"train.ckpt.save_mode": "sync"},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("cuda")
    return SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder))


def _run_engine(action: str, spec: Path, run_dir: Path, ranks: int) -> None:
    """By processes that start anew: one that forks from a process which has looked for CUDA cannot use it."""
    done = subprocess.run(engine_command(action, spec, run_dir, ranks), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def _full(world: SimpleNamespace, ranks: int, dtype: str) -> Path:
    """The run of a full fine-tune; trained by the first test that asks for it."""
    run = world.folder / f"full_{ranks}_{dtype}" / "run"
    return run if run.exists() else _train(world, run.parent.name, ranks, **{"train.param_dtype": dtype})


def _train(world: SimpleNamespace, name: str, ranks: int, **over: object) -> Path:
    (world.folder / name).mkdir()
    table = {
        "train.epoch": 3,
        "policy.parallelism.dp_shard_size": ranks,
        "train.train_batch_per_replica": 4 // ranks,
        "validation.enable": True,
        "train.train_policy.dataset.test_size": 0.1,
        "engine.validation_generate": 2,
        "engine.pack_tokens": 4096,
        **over,
    }
    spec = tiny_spec(world.folder / name, world.model, world.root, table)
    _run_engine("train", spec, world.folder / name / "run", ranks)
    return world.folder / name / "run"


@pytest.mark.parametrize("ranks", [n for n in (1, 2, 4) if n <= GPUS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_full_fine_tune_learns_and_its_export_is_proved(world: SimpleNamespace, ranks: int, dtype: str) -> None:
    run = _full(world, ranks, dtype)
    found = losses(run)
    assert found[-1] < found[0]
    proof = json.loads((run / "best/proof.json").read_text())
    print(f"ranks {ranks} {dtype}: losses {[round(x, 5) for x in found]} proof {proof}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_second_family_learns_and_its_export_is_proved(world: SimpleNamespace, dtype: str) -> None:
    folder = world.folder / f"second_{dtype}"
    folder.mkdir()
    second = SimpleNamespace(folder=folder, model=tiny_model(folder, family="qwen2_5_vl"), root=world.root)
    run = _train(second, "run", 1, **{"train.param_dtype": dtype})
    assert losses(run)[-1] < losses(run)[0]
    assert (run / "best/proof.json").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 72, 80])  # of a head in Reason2 2B, 8B and Reason1
def test_rotated_heads_of_the_vision_tower_are_those_of_plain_pytorch(size: int, dtype: torch.dtype) -> None:
    heads, drawn = 16, torch.Generator("cuda").manual_seed(size)
    packed = torch.randn(333, 3 * heads * size, device="cuda", dtype=dtype, generator=drawn)
    angle = torch.randn(333, size // 2, device="cuda", generator=drawn).repeat(1, 2)
    found = kernels_for(packed.device).vision_heads(packed, heads, angle.cos(), angle.sin())
    expected = plain.vision_heads(packed, heads, angle.cos(), angle.sin())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=8e-3 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_ratios_are_1_and_the_divergence_is_0_while_nothing_changes(
    tmp_path: Path, family: str, lora: bool, dtype: str
) -> None:
    """Of reinforcement learning, exactly, with compiled layers: what has gradients computes as what has none."""
    table = {"policy.lora": {}, "policy.lora.lora_dropout": 0.0} if lora else {}
    spec = rl_spec(tmp_path, rl_model(tmp_path, family=family), {**UNCHANGED, **table, "train.param_dtype": dtype})
    _run_engine("grpo", spec, tmp_path / "run", 1)
    require_unchanged(tmp_path / "run")


def test_more_ranks_give_the_losses_of_one(world: SimpleNamespace) -> None:
    runs = [_full(world, ranks, "float32") for ranks in (1, 2, 4) if ranks <= GPUS]
    for run in runs[1:]:
        assert losses(run) == pytest.approx(losses(runs[0]), rel=2e-3)  # TF32 and other kernels on other shapes


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("dtype", "apart"), [("float32", 2e-3), ("bfloat16", 1e-2)])
def test_gpus_that_share_packs_give_the_losses_of_one(world: SimpleNamespace, dtype: str, apart: float) -> None:
    over = {"policy.parallelism.dp_shard_size": 1, "policy.parallelism.cp_size": 2}
    over |= {"train.train_batch_per_replica": 4, "train.param_dtype": dtype}
    assert losses(_train(world, f"context_{dtype}", 2, **over)) == pytest.approx(
        losses(_full(world, 1, dtype)), rel=apart
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_no_option_changes_the_losses(world: SimpleNamespace, option: str) -> None:
    """On every GPU in bfloat16, against one GPU without it: equal within bfloat16's rounding."""
    run = _train(world, option, GPUS, **{"train.param_dtype": "bfloat16", **OPTIONS[option]})
    assert losses(run) == pytest.approx(losses(_full(world, 1, "bfloat16")), rel=1e-2)


def test_shared_videos_give_the_losses_of_videos_that_are_not(world: SimpleNamespace) -> None:
    """With every sample in every step, because sharing keeps the questions of a video together."""
    samples = len(json.loads((world.root / "annotations.json").read_text()))
    over = {"validation.enable": False, "train.train_policy.dataset.test_size": None, "train.compile": False}
    over |= {"train.train_batch_per_replica": samples, "train.param_dtype": "bfloat16"}
    alone, shared = (
        losses(_train(world, f"shared_{share}", 1, **over, **{"engine.share_video_prefix": share}))
        for share in (False, True)
    )
    assert shared == pytest.approx(alone, rel=1e-2)


def test_lora_in_bf16_on_every_gpu(world: SimpleNamespace) -> None:
    run = _train(world, "lora", GPUS, **{"policy.lora.r": 4, "train.optm_lr": 3e-3})
    assert losses(run)[-1] < losses(run)[0]
    assert (run / "best/adapter_model.safetensors").exists() and (run / "best/proof.json").exists()


def test_a_checkpoint_that_was_copied_beside_the_training_is_the_state_of_its_step(world: SimpleNamespace) -> None:
    """Steps go on while it is copied; resumed from it they are taken again with the same losses."""
    saves = {"train.ckpt.save_freq": 2, "train.ckpt.save_freq_in_epoch": 0, "train.ckpt.max_keep": -1}
    exact = {**saves, "train.param_dtype": "float32", "train.compile": False}
    whole = _train(world, "saved", 1, **exact)
    for step in (2, 4):
        again = _train(
            world, f"resumed_{step}", 1, **exact, **{"train.resume": str(whole / f"checkpoints/step_{step}")}
        )
        assert losses(again) == pytest.approx(losses(whole)[step:], rel=1e-4)


def test_evaluation_on_every_gpu(world: SimpleNamespace) -> None:
    table = {
        "dataset.annotation_path": str(world.root / "annotations.json"),
        "dataset.media_dir": str(world.root),
        "model.model_name": str(_full(world, 1, "bfloat16") / "best"),
        "vision.nframes": 4,
        "generation.max_tokens": 8,
        "num_gpus": GPUS,
        "engine.frame_cache_dir": str(world.folder / "cache"),
    }
    spec = world.folder / "evaluate.toml"
    spec.write_text(dump(resolve("evaluate", [Layer("test", table)]).spec))
    _run_engine("evaluate", spec, world.folder / "evaluation", GPUS)
    assert json.loads((world.folder / "evaluation/metrics.json").read_text())["n"] == 14


def test_planned_kernels_are_planned_no_more(world: SimpleNamespace) -> None:
    """A shape that was planned is called in a fraction of the time that planning takes, forward and backward."""
    calls = ([(1, 1408), (2, 1408), (1, 1664)], [(5, 340), (7, 340)])
    tiny = Qwen3VLForConditionalGeneration(AutoConfig.from_pretrained(world.model))

    def seconds() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        warmup.plan_kernels(calls, NO_RECOMPUTE, tiny, single_process_world())
        torch.cuda.synchronize()
        return time.perf_counter() - began

    planning = seconds()
    assert seconds() < planning / 5


@pytest.mark.parametrize("allowed_gib", [None, 1.0])
def test_memory_is_mapped_before_it_is_used(allowed_gib: float | None) -> None:
    """As much as a prediction of 2 GiB asks for, or as this process may take, by a process that starts anew."""
    program = f"""
import torch
from vidqa.engine.training.warmup import map_memory
device, allowed, gib = torch.device("cuda", 0), {allowed_gib}, 1024**3
if allowed:
    torch.cuda.set_per_process_memory_fraction(allowed * gib / torch.cuda.mem_get_info()[1], device)
kept = torch.zeros(100 * 1024**2, device=device)
map_memory(2.0, device)
mapped, most = torch.cuda.memory_reserved(), min(2.1, allowed or 2.1) * gib
assert most - 256 * 1024**2 < mapped <= most, mapped
assert torch.cuda.max_memory_allocated() < 0.5 * gib
left = torch.empty(mapped - 500 * 1024**2, dtype=torch.uint8, device=device)
assert torch.cuda.memory_reserved() <= mapped + 64 * 1024**2
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTORCH_ALLOC_CONF": ALLOCATOR}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
