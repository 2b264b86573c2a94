"""Saves beside the training: copies, files that several ranks write, slow disks, and kills at any moment."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import kill_loop
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from vidqa.core.run_folder import RunFolder
from vidqa.engine import memory
from vidqa.engine.export import writing
from vidqa.engine.export.writing import TensorRows, create_files, plan_shards, write_rows
from vidqa.engine.training.async_save import PinnedSnapshot

HERE = Path(__file__).parent
CPU = torch.device("cpu")


def tensors_of(seed: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (7, 5), "b.weight": (300, 4), "c.bias": (9,), "none": (0, 5), "d.weight": (2, 3, 4)}
    return {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}


def test_a_copy_is_what_the_tensors_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BLOCK_BYTES", 1024)  # several tensors to a block, and one larger than a block
    place, live = PinnedSnapshot(CPU), tensors_of(0)
    was = {name: tensor.clone() for name, tensor in live.items()}
    copies = place.copy(live)
    for tensor in live.values():
        tensor.add_(1)
    for name, tensor in was.items():
        assert torch.equal(copies[name], tensor), name
        assert copies[name].untyped_storage().nbytes() == tensor.nbytes  # or whoever writes it copies it again
    again = place.copy(live)
    assert all(torch.equal(again[name], live[name]) for name in live)
    assert all(again[name].data_ptr() == copies[name].data_ptr() for name in live)  # the same memory


def test_an_update_waits_until_the_copies_are_made() -> None:
    place, live = PinnedSnapshot(CPU), tensors_of(0)
    was = {name: tensor.clone() for name, tensor in live.items()}
    place.hold_update()  # nothing was announced
    place.announce()
    copies: list[dict[str, torch.Tensor]] = []
    saver = threading.Timer(0.2, lambda: copies.append(place.copy(live)))
    saver.start()
    place.hold_update()
    for tensor in live.values():
        tensor.add_(1)
    saver.join()
    assert all(torch.equal(copies[0][name], tensor) for name, tensor in was.items())


def test_copies_that_fail_hold_no_update() -> None:
    place = PinnedSnapshot(CPU)
    place.announce()
    with pytest.raises(AttributeError):
        place.copy({"no tensor": None})  # type: ignore[dict-item]
    place.hold_update()


def test_blocks_are_filled_in_order_and_never_overrun() -> None:
    sizes = {"a": 100, "b": 200, "c": memory.BLOCK_BYTES, "d": 3 * memory.BLOCK_BYTES, "e": 1, "f": 1}
    assert memory._blocks(sizes) == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert memory._blocks({"none of its rows are here": 0, **sizes})[0] == [
        "none of its rows are here",
        "a",
        "b",
    ]
    assert memory._blocks({}) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [1 << 30, 2000])
def test_ranks_write_the_files_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, limit: int
) -> None:
    monkeypatch.setattr(writing, "SHARD_BYTES", limit)
    whole = {name: tensor for name, tensor in tensors_of(1).items() if tensor.numel()}
    plan = plan_shards({name: tuple(t.shape) for name, t in whole.items()}, dtype, "model")
    create_files(tmp_path, plan, "model")
    for rank in (1, 0, 2):
        parts = ((name, len(t) * rank // 3, t.chunk(1)[0]) for name, t in whole.items())
        rows = [TensorRows(name, first, t[first : len(t) * (rank + 1) // 3]) for name, first, t in parts]
        write_rows(tmp_path, plan, rows, dtype)
    found: dict[str, torch.Tensor] = {}
    for path in sorted(tmp_path.glob("*.safetensors")):
        found |= load_file(path)
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], tensor.to(dtype)) for name, tensor in whole.items())
    if limit > 2000:
        save_file({n: t.to(dtype) for n, t in whole.items()}, tmp_path / "theirs", metadata={"format": "pt"})
        assert (tmp_path / "theirs").stat().st_size == (tmp_path / "model.safetensors").stat().st_size
    else:
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(whole)
        assert all(name in load_file(tmp_path / file) for name, file in index["weight_map"].items())
        assert index["metadata"]["total_size"] == sum(t.numel() * dtype.itemsize for t in whole.values())


def test_a_name_that_is_taken_passes_to_the_new_one(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for text in ("old", "new"):
        (run.begin(run.checkpoints, "step_2") / "file").write_text(text)
        published = run.publish(run.checkpoints / ".unfinished-step_2")
        assert (published / "file").read_text() == text
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_2"]


def test_a_kill_between_the_renames_of_a_publication_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older folder has its name again, and what was to replace it is gone with other unfinished ones."""
    run = RunFolder(tmp_path)
    (run.begin(run.exports, "step_2") / "file").write_text("old")
    run.publish(run.exports / ".unfinished-step_2")
    (unfinished := run.begin(run.exports, "step_2")).joinpath("file").write_text("new")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path == unfinished:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", killed)
        run.publish(unfinished)
    run.sweep()
    assert [path.name for path in run.exports.iterdir()] == ["step_2"]
    assert (run.exports / "step_2/file").read_text() == "old"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("checkpoint")
    return SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder, clips=3))


def spec_of(world: SimpleNamespace, name: str, **over: Any) -> Path:
    (world.folder / name).mkdir()
    table = {"train.epoch": 3, "train.ckpt.save_freq": 3, "train.ckpt.save_freq_in_epoch": 0, **over}
    return tiny_spec(world.folder / name, world.model, world.root, table)


def state_of(checkpoint: Path, scratch: Path) -> dict[str, torch.Tensor]:
    dcp_to_torch_save(checkpoint / "policy", scratch)
    return torch.load(scratch, weights_only=True)


def test_steps_go_on_while_a_slow_disk_takes_what_was_saved(world: SimpleNamespace, tmp_path: Path) -> None:
    """Step 3 is on disk after step 5 was taken, and holds what the weights were after step 3."""
    run_engine("train", spec_of(world, "quick", **{"train.ckpt.save_mode": "sync"}), world.folder / "quick/run")
    run = world.folder / "slow/run"
    torchrun = [sys.executable, "-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", "1"]
    words = [HERE / "slow_disk.py", 5, "train", "--spec", spec_of(world, "slow"), "--run-dir", run]
    done = forked.run([*torchrun, *map(str, words)], timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(run) == pytest.approx(losses(world.folder / "quick/run"), rel=1e-5) and len(losses(run)) == 6
    quick, slow = (
        state_of(world.folder / name / "run/checkpoints/step_3", tmp_path / name) for name in ("quick", "slow")
    )
    last = state_of(run / "checkpoints/step_6", tmp_path / "last")
    assert quick.keys() == slow.keys() and any(name.endswith(".exp_avg_sq") for name in slow)
    for name, tensor in quick.items():
        torch.testing.assert_close(slow[name], tensor)
    assert not any(torch.equal(slow[name], last[name]) for name in slow if name.endswith("q_proj.weight"))
    export = load_file(run / "safetensors/step_3/model.safetensors")
    assert all(torch.equal(slow[name], tensor) for name, tensor in export.items() if name in slow)


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing_published(tmp_path: Path) -> None:
    """Three kills of the loop that is run with fifty, so soon that the run does not end before them."""
    place = kill_loop.prepare(tmp_path, steps=14)
    assert len(kill_loop.kill_all(place, kills=3, seed=1, longest_s=1.5, early_s=3.0)) == 3
