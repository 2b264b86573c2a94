"""--verify: a step's losses with and without shared videos, and a broken sharing that is told as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import forked
import pytest
from in_process import one_rank
from tiny_world import engine_command, tiny_data, tiny_model, tiny_spec

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.data.collate import Collator
from vidqa.engine.prove import prove
from vidqa.spec import load


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("prove")
    return SimpleNamespace(folder=folder, model=tiny_model(folder), root=tiny_data(folder, clips=3))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    (tmp_path / "run").mkdir()
    with one_rank():
        yield RunFolder(tmp_path / "run")


def spec_of(world: SimpleNamespace, folder: Path, **over: Any) -> Path:
    return tiny_spec(folder, world.model, world.root, {"train.train_batch_per_replica": 6, **over})


def facts(run: Path) -> dict[str, Any]:
    return json.loads((run / "sharing.json").read_text())


def test_two_ranks_prove_one_step_and_leave_nothing_trained(world: SimpleNamespace, tmp_path: Path) -> None:
    mesh = {"policy.parallelism.dp_shard_size": 2, "train.train_batch_per_replica": 3}
    command = engine_command("train", spec_of(world, tmp_path, **mesh), tmp_path / "run", ranks=2)
    done = forked.run([*command, "--verify"], timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    found = facts(tmp_path / "run")
    assert found["agree"] and found["samples"] == 6 and found["largest_difference"] < 1e-5
    assert found["shared"]["tokens"] < found["alone"]["tokens"]
    assert found["shared"]["loss"] == pytest.approx(found["alone"]["loss"], rel=1e-6)
    assert "proved: losses of 6 samples differ by at most" in done.stderr
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "COMPLETE"
    assert not (tmp_path / "run/safetensors").exists() and not (tmp_path / "run/checkpoints").exists()


def test_losses_that_differ_are_named_and_nothing_is_proved(
    world: SimpleNamespace, tmp_path: Path, run: RunFolder
) -> None:
    collate = Collator.__call__

    def wrong(self: Collator, *asked: Any) -> Any:
        batch = collate(self, *asked)
        return replace(batch, position_3T=batch.position_3T.flip(1)) if self.share else batch

    with patch.object(Collator, "__call__", wrong), pytest.raises(ProblemError, match="differ by at most") as told:
        prove(load(spec_of(world, tmp_path), "train"), run)
    assert [problem.code for problem in told.value.problems] == ["ENGINE_UNPROVEN"]
    assert told.value.exit_code == 5 and facts(run.path)["agree"] is False


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"engine.pack_tokens": 8}, "ENGINE_UNPROVEN"),
        ({"engine.packing": False}, "SPEC_CONFLICT"),
    ],
)
def test_where_nothing_can_be_shared_it_says_so(
    world: SimpleNamespace, tmp_path: Path, run: RunFolder, over: dict[str, Any], code: str
) -> None:
    with pytest.raises(ProblemError) as told:
        prove(load(spec_of(world, tmp_path, **over), "train"), run)
    assert [problem.code for problem in told.value.problems] == [code]
    assert not (run.path / "sharing.json").exists()
