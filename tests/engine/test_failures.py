"""A run that cannot go on says why, on every rank, and keeps what it has saved."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import torch
from clips import write_clip
from in_process import train_here
from safetensors.torch import load_file, save_file
from tiny_world import engine_command, losses, run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.core.problem import Exit, ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.export import load_export


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("failures")
    return SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder))


def attempt(
    world: SimpleNamespace, folder: Path, over: dict[str, Any], *, ranks: int = 1, root: Path | None = None
) -> Any:
    """Run the engine in `folder`/run; its exit code, problem codes, status and log."""
    folder.mkdir(exist_ok=True)
    spec = tiny_spec(folder, world.model, root or world.root, {"engine.frame_cache_gb": 0.0, **over})
    done = run_engine("train", spec, folder / "run", ranks=ranks, check=False)
    problems = folder / "run/problems.json"
    return SimpleNamespace(
        exit_code=done.returncode,
        codes=[p["code"] for p in json.loads(problems.read_text())] if problems.exists() else [],
        status=json.loads((folder / "run/status.json").read_text()),
        log=done.stdout + done.stderr,
        run=folder / "run",
    )


def test_a_loss_that_explodes_ends_the_run_and_keeps_the_checkpoint(world: SimpleNamespace, tmp_path: Path) -> None:
    """The last one whose weights have a finite loss: the update of a step with a finite loss may destroy them."""
    saved = {"train.ckpt.save_freq": 1, "train.ckpt.save_freq_in_epoch": 0, "train.epoch": 3, "train.ckpt.max_keep": -1}
    saved |= {"train.ckpt.export_safetensors": False}
    train_here(tiny_spec(tmp_path, world.model, world.root, {**saved, "train.max_num_steps": 1}), tmp_path / "run")
    over = {"train.optm_lr": 1e30, "train.optm_grad_norm_clip": 0.0, "train.resume": True}
    end = attempt(world, tmp_path, {**over, **saved})
    assert end.codes == ["ENGINE_NOT_FINITE"] and end.exit_code == Exit.JOB_FAILED
    assert (end.status["state"], end.status["exit_code"]) == ("ERROR", Exit.JOB_FAILED)
    assert end.status["step"] == len(losses(end.run)) > 0 and end.status["total_steps"] > end.status["step"]
    assert "Traceback" not in end.log
    page = (end.run / "report.html").read_text()
    assert "ERROR · step" in page and "ENGINE_NOT_FINITE" in page and 'aria-label="Loss"' in page
    assert [folder.name for folder in (end.run / "checkpoints").iterdir()] == ["step_1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of some checkpoints' size; it takes root to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_while_training_ends_the_run(world: SimpleNamespace, small_disk: Path) -> None:
    saved = {"train.ckpt.save_freq": 1, "train.ckpt.save_freq_in_epoch": 0, "train.epoch": 8, "train.ckpt.max_keep": -1}
    end = attempt(world, small_disk, saved)
    assert end.codes == ["ENGINE_SAVE_FAILED"] and end.status["state"] == "ERROR" and "Traceback" not in end.log
    # PyTorch's writer of checkpoints does not say why it failed; any other file may be the first that does not fit.
    assert "MB of the disk are free" in end.log or "No space left on device" in end.log


def test_a_save_that_fails_on_one_rank_ends_the_run_at_the_next_step(world: SimpleNamespace, tmp_path: Path) -> None:
    """The other rank waits for it in its own save."""
    saved = {"train.ckpt.save_freq": 3, "train.ckpt.save_freq_in_epoch": 0, "train.train_batch_per_replica": 1}
    spec = tiny_spec(tmp_path, world.model, world.root, {**saved, "policy.parallelism.dp_shard_size": 2})
    command = engine_command("train", spec, tmp_path / "run", 2)
    at = command.index("vidqa.engine")
    command[at - 1 : at + 1] = [str(Path(__file__).with_name("failed_copy.py"))]
    done, run = forked.run(command, timeout=180), RunFolder(tmp_path / "run")
    assert [(p.code, p.message) for p in run.read_problems()] == [("ENGINE_SAVE_FAILED", "no memory on rank 1")]
    assert done.returncode == Exit.JOB_FAILED and "Traceback" not in done.stderr
    assert run.read_status()["step"] < 6 and not list(run.checkpoints.glob("step_*"))


def test_weights_that_are_not_finite_are_not_exported(world: SimpleNamespace, tmp_path: Path) -> None:
    end = attempt(world, tmp_path, {"train.optm_lr": 1e38, "train.max_num_steps": 1, "train.optm_weight_decay": 0.0})
    assert end.codes == ["ENGINE_NOT_FINITE"]
    assert not list(end.run.glob("safetensors/*")) and not (end.run / "best").exists()


def test_a_clip_that_breaks_while_training_is_named_and_left_out(world: SimpleNamespace, tmp_path: Path) -> None:
    root = tiny_data(tmp_path, clips=4, images=0, texts=0)
    clip = root / "videos/3.mp4"
    content = bytearray(write_clip(clip, frames=64, fps=8, height=64).read_bytes())
    start, end_of_pictures = content.index(b"mdat") + 8, content.rindex(b"moov")
    middle = (start + end_of_pictures) // 2  # the index and the first pictures stay whole: probing finds nothing
    content[middle:end_of_pictures] = bytes(end_of_pictures - middle)
    clip.write_bytes(content)
    over = {
        "engine.on_bad_sample": "quarantine",
        "policy.parallelism.dp_shard_size": 2,
        "train.train_batch_per_replica": 2,
    }
    end = attempt(world, tmp_path / "lenient", over, ranks=2, root=root)
    assert end.exit_code == 0 and end.status["state"] == "COMPLETE"
    left_out = json.loads((end.run / "quarantine.json").read_text())
    assert len(left_out) == 1 and "3.mp4" in left_out[0]["where"] and "left out" in end.log
    page = (end.run / "report.html").read_text()
    assert "Left out (1)" in page and left_out[0]["code"] in page
    strict = attempt(world, tmp_path / "strict", {**over, "engine.on_bad_sample": "fail"}, ranks=2, root=root)
    assert strict.codes == ["ENGINE_BAD_SAMPLE"] and strict.status["exit_code"] == Exit.INPUT
    assert strict.exit_code == Exit.INPUT and "Traceback" not in strict.log
    records = json.loads((root / "annotations.json").read_text())
    (root / "annotations.json").write_text(json.dumps([each for each in records if each["video"] == "videos/3.mp4"]))
    alone = {"engine.on_bad_sample": "quarantine", "train.train_batch_per_replica": 2}
    with pytest.raises(ProblemError, match="DATA_EMPTY at step 1"):  # where nothing is left, nothing is learned
        train_here(tiny_spec(tmp_path, world.model, root, alone), tmp_path / "alone")


def test_text_without_media_cannot_train_a_vision_tower(world: SimpleNamespace, tmp_path: Path) -> None:
    root = tiny_data(tmp_path, clips=0, images=0, texts=6)
    end = attempt(world, tmp_path / "all", {}, root=root)
    assert end.codes == ["ENGINE_NO_GRADIENT"]
    (tmp_path / "frozen").mkdir()
    frozen = tiny_spec(tmp_path / "frozen", world.model, root, {"policy.freeze_pattern": ["visual"]})
    assert losses(train_here(frozen, tmp_path / "frozen/run"))


def test_another_number_of_ranks_than_the_spec_asks_for(world: SimpleNamespace, tmp_path: Path) -> None:
    end = attempt(world, tmp_path, {"policy.parallelism.dp_shard_size": 2}, ranks=1)
    assert end.codes == ["SPEC_DP_MISMATCH"] and end.exit_code == Exit.INPUT


def test_a_resume_that_would_lose_what_was_trained_is_refused(world: SimpleNamespace, tmp_path: Path) -> None:
    first = {"train.ckpt.save_freq": 1, "train.max_num_steps": 2}
    train_here(tiny_spec(tmp_path, world.model, world.root, first), tmp_path / "run")
    resume = {**first, "train.resume": True, "train.max_num_steps": 3}
    for change in (
        {"policy.freeze_pattern": ["visual"]},
        {"policy.lora.r": 4},
        {"train.train_batch_per_replica": 2},
        {"custom.vision.nframes": 2},
    ):
        with pytest.raises(ProblemError) as refused:
            train_here(tiny_spec(tmp_path, world.model, world.root, {**resume, **change}), tmp_path / "run")
        assert [problem.code for problem in refused.value.problems] == ["RESUME_MISMATCH"], change
    (tmp_path / "run/checkpoints/step_9").mkdir()  # a stray folder is no checkpoint
    (tmp_path / "run/checkpoints/.unfinished-step_3").mkdir()  # nor is what a kill left
    end = attempt(world, tmp_path, resume)
    assert end.exit_code == 0 and "resumed after step 2" in end.log and len(losses(end.run)) == 3
    assert not list(end.run.glob("checkpoints/.unfinished*"))


def test_an_adapter_of_another_model_is_refused(world: SimpleNamespace, tmp_path: Path) -> None:
    adapted = tiny_spec(tmp_path, world.model, world.root, {"policy.lora.r": 2, "train.max_num_steps": 1})
    adapter = (train_here(adapted, tmp_path / "run") / "best").resolve()
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(
        {name.replace("layers.0", "layers.7"): t for name, t in weights.items()}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(ProblemError) as refused:
        load_export(adapter, world.model, torch.float32, torch.device("cpu"))
    assert refused.value.problems[0].code == "MODEL_BROKEN"
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(ProblemError) as refused:
        load_export(adapter, world.model, torch.float32, torch.device("cpu"))
    assert refused.value.problems[0].code == "MODEL_BROKEN"
