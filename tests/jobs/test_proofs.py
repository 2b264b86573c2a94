"""launch.py --verify: where the proof of an action lies, and of which run it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.jobs import records
from vidqa.jobs.api import submit
from vidqa.jobs.local_job import prove
from vidqa.spec import Layer, dump, resolve


def grpo_spec(train: Path) -> Path:
    """A GRPO spec whose stand-in engine completes."""
    folder = train.parent
    keys = {
        "policy.model_name_or_path": str(folder / "model"),
        "custom.train_dataset.annotation_path": str(folder / "annotations.json"),
        "custom.train_dataset.media_path": str(folder),
        "logging.experiment_name": "complete",
        "train.output_dir": str(folder / "runs"),
    }
    path = folder / "grpo.toml"
    path.write_text(dump(resolve("grpo", [Layer("test", keys)]).spec))
    return path


def test_losses_are_proved_beside_the_runs_without_a_job(stand_in: None, write_spec: Callable[..., Path]) -> None:
    spec = write_spec("complete")
    folder = prove("train", spec)
    assert folder == spec.parent / "runs/proof"
    assert RunFolder(folder).read_status()["state"] == "COMPLETE" and not records.scan()[0]


def test_a_step_is_replayed_in_the_newest_run_or_in_that_of_the_spec(
    stand_in: None, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    spec = grpo_spec(write_spec("complete"))
    with pytest.raises(ProblemError) as raised:
        prove("grpo", spec)
    assert raised.value.problems[0].code == "RESUME_NO_CHECKPOINT"
    first, second = (Path(submit("grpo", spec, "local", new_run=True).wait().run_dir) for _ in range(2))
    assert prove("grpo", spec) == second / "proof"
    assert prove("grpo", first / "spec.toml") == first / "proof"
    moved = Path(shutil.move(first, tmp_path / "moved"))
    assert prove("grpo", moved / "spec.toml") == moved / "proof"


def test_what_a_proof_ends_with_is_raised(stand_in: None, write_spec: Callable[..., Path]) -> None:
    with pytest.raises(ProblemError) as raised:
        prove("train", write_spec("fail"))
    assert [problem.code for problem in raised.value.problems] == ["DATA_EMPTY"]
