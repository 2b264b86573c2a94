"""Another attempt in the same run folder goes on with what it finds there; the first does just what its spec says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.core.run_folder import RunFolder
from vidqa.engine.__main__ import with_resuming
from vidqa.spec.models import EvaluateSpec, TrainSpec

CHECKPOINT = "/models/earlier/checkpoints/step_9"


@pytest.mark.parametrize("asked", [False, True, CHECKPOINT])
def test_a_training_resumes_from_its_own_newest_checkpoint_once_it_has_one(tmp_path: Path, asked: bool | str) -> None:
    spec = TrainSpec.model_validate({"train": {"resume": asked}})
    run = RunFolder(tmp_path)
    assert with_resuming(spec, run) == spec
    unfinished = run.checkpoints / ".unfinished-step_3"
    unfinished.mkdir(parents=True)
    (unfinished / "trainer.json").write_text(json.dumps({"step": 3}))
    assert with_resuming(spec, run).train.resume == asked  # a save that a kill cut off is none
    unfinished.rename(run.checkpoints / "step_3")
    again = with_resuming(spec, run)
    assert again.train.resume is True and again.train.model_copy(update={"resume": asked}) == spec.train


def test_an_evaluation_keeps_the_answers_it_has(tmp_path: Path) -> None:
    spec = EvaluateSpec()
    assert not spec.evaluation.skip_saved
    assert with_resuming(spec, RunFolder(tmp_path)).evaluation.skip_saved
