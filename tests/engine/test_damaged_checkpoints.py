"""Checkpoints that are damaged, hostile, or of another spec: what resuming takes, skips, refuses and tells."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from in_process import events, one_rank, train_here
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.training.resume import Start, start_of

OPTIONS = {
    "custom.system_prompt": "Say yes",
    "train.max_num_steps": 6,
    "train.epoch": 6,
    "train.train_batch_per_replica": 3,
    "train.optm_lr": 1e-4,
    "train.ckpt.save_freq": 2,
    "train.ckpt.save_freq_in_epoch": 0,
    "train.ckpt.max_keep": -1,
    "train.ckpt.export_safetensors": False,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A finished run with checkpoints after steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("damaged")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder, clips=3))
    place.run = train_here(spec_of(place, folder), folder / "run")
    assert len(RunFolder(place.run).newest_checkpoints()) == 3
    return place


def spec_of(world: SimpleNamespace, folder: Path, **over: Any) -> Path:
    folder.mkdir(exist_ok=True)
    changes = {key.replace("__", "."): value for key, value in over.items()}
    return tiny_spec(folder, world.model, world.root, {**OPTIONS, **changes})


@pytest.fixture
def run(world: SimpleNamespace, tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(world.run, tmp_path / "run", symlinks=True))


def started(run: RunFolder, asked: bool | str = True) -> Start:
    with one_rank():
        return start_of(asked, run, distributed.start(1, 1, 60.0))


def tensors_of(checkpoint: Path) -> Path:
    return max((checkpoint / "policy").glob("*.distcp"), key=lambda path: path.stat().st_size)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(data: bytes) -> bytes:
    """One bit of the middle, as a failing disk leaves it: the size stays."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "tensors cut off": lambda at: rewrite(tensors_of(at), lambda data: data[:-100]),
    "tensors of no bytes": lambda at: rewrite(tensors_of(at), lambda data: b""),
    "tensors missing": lambda at: tensors_of(at).unlink(),
    "tensors garbage": lambda at: rewrite(tensors_of(at), lambda data: os.urandom(len(data))),
    "one bit of the tensors": lambda at: rewrite(tensors_of(at), flip),
    "table cut off": lambda at: rewrite(at / "policy/.metadata", lambda data: data[:-9]),
    "table garbage": lambda at: rewrite(at / "policy/.metadata", lambda data: os.urandom(len(data))),
    "one bit of the table": lambda at: rewrite(at / "policy/.metadata", flip),
    "table missing": lambda at: (at / "policy/.metadata").unlink(),
    "facts cut off": lambda at: rewrite(at / "trainer.json", lambda data: data[:-9]),
    "facts of NULs": lambda at: rewrite(at / "trainer.json", lambda data: bytes(len(data))),
    "facts without a step": lambda at: (at / "trainer.json").write_text("{}"),
    "no facts": lambda at: (at / "trainer.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_checkpoint_is_skipped_for_the_one_before(
    run: RunFolder, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[damage](run.checkpoints / "step_6")
    assert started(run).step == 4
    assert "skipped the checkpoint step_6" in capsys.readouterr().err
    # Named by its path it is no other one's place to be taken.
    with pytest.raises(ProblemError) as caught:
        started(run, str(run.checkpoints / "step_6"))
    assert caught.value.problems[0].code == "RESUME_NO_CHECKPOINT"


def test_where_no_checkpoint_is_whole_nothing_starts_anew(run: RunFolder) -> None:
    for at in run.newest_checkpoints():
        DAMAGE["tensors cut off"](at)
    with pytest.raises(ProblemError) as caught:
        started(run)
    (problem,) = caught.value.problems
    assert problem.code == "RESUME_NO_CHECKPOINT"
    assert all(f"step_{step}" in problem.message for step in (2, 4, 6))


def test_a_run_goes_on_from_the_older_one_to_the_same_losses(
    world: SimpleNamespace, run: RunFolder, tmp_path: Path
) -> None:
    DAMAGE["one bit of the tensors"](run.checkpoints / "step_6")
    train_here(spec_of(world, tmp_path / "again", train__resume=True), run.path)
    assert (
        events(run.path, "train/loss") == events(world.run, "train/loss") and len(events(run.path, "train/loss")) == 6
    )
    assert started(run).step == 6  # written anew, whole


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.proof}'",)


@pytest.mark.parametrize("where", ["table", "inside the table", "tensors", "an entry that is no tensor"])
def test_a_checkpoint_runs_no_code(run: RunFolder, tmp_path: Path, where: str, world: SimpleNamespace) -> None:
    step_6, proof = run.checkpoints / "step_6", tmp_path / "it ran"
    table = step_6 / "policy/.metadata"
    if where == "table":
        table.write_bytes(pickle.dumps(Hostile(proof)))
    elif where == "inside the table":
        held = pickle.loads(table.read_bytes())
        held.planner_data = Hostile(proof)
        table.write_bytes(pickle.dumps(held))
    elif where == "an entry that is no tensor":
        held = pickle.loads(table.read_bytes())
        name = next(iter(held.state_dict_metadata))
        from torch.distributed.checkpoint.metadata import BytesStorageMetadata

        held.state_dict_metadata[name] = BytesStorageMetadata()
        table.write_bytes(pickle.dumps(held))
    else:
        packed = io.BytesIO()
        torch.save(Hostile(proof), packed)
        path = tensors_of(step_6)
        rewrite(path, lambda data: packed.getvalue() + data[len(packed.getvalue()) :])
    facts = json.loads((step_6 / "trainer.json").read_text())
    (step_6 / "trainer.json").write_text(
        json.dumps({**facts, "files": {}})
    )  # as an attacker, or an older version, has it
    spec = spec_of(world, tmp_path / "again", train__resume=str(step_6), train__max_num_steps=7, train__epoch=7)
    with pytest.raises(ProblemError) as caught:
        train_here(spec, tmp_path / "other")
    assert caught.value.problems[0].code in ("RESUME_NO_CHECKPOINT", "RESUME_MISMATCH")
    assert not proof.exists()


def test_a_rank_that_is_lost_while_loading_is_no_other_model(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer")

    monkeypatch.setattr(dcp, "load", lost)
    spec = spec_of(world, tmp_path, train__resume=str(world.run / "checkpoints/step_4"))
    with pytest.raises(RuntimeError, match="Connection closed"):
        train_here(spec, tmp_path / "run")


def test_a_table_may_not_name_files_outside(run: RunFolder) -> None:
    table = run.checkpoints / "step_6/policy/.metadata"
    held = pickle.loads(table.read_bytes())
    for place in held.storage_data.values():
        place.relative_path = "../../step_4/policy/" + place.relative_path
    table.write_bytes(pickle.dumps(held))
    facts = json.loads((run.checkpoints / "step_6/trainer.json").read_text())
    (run.checkpoints / "step_6/trainer.json").write_text(json.dumps({**facts, "files": {}}))
    assert started(run).step == 4


def test_what_a_run_that_goes_on_changes_is_told_or_refused(
    world: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Token totals alone would not show any of these."""
    asked = {"train__resume": str(world.run / "checkpoints/step_4")}
    spec = spec_of(world, tmp_path / "rate", **asked, train__optm_lr=2e-4, train__optm_betas=[0.8, 0.9])
    run = train_here(spec, tmp_path / "rate/run")
    said = capsys.readouterr().err
    assert "train.optm_lr: 0.0001 -> 0.0002" in said and "train.optm_betas" in said
    changed = json.loads((run / "run.json").read_text())["resumes"][-1]["changed"]
    assert any(text.startswith("train.optm_lr") for text in changed)
    for key, value in (("custom__vision__total_pixels", 65536), ("custom__system_prompt", "say Yes")):
        spec = spec_of(world, tmp_path / key, **asked, **{key: value})
        with pytest.raises(ProblemError) as caught:
            train_here(spec, tmp_path / key / "run")
        (problem,) = caught.value.problems
        assert problem.code == "RESUME_MISMATCH" and key.replace("__", ".") in problem.message
