"""A round whose training is the best of a study: real trials as jobs, whose trainings take no time."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from cheap_stages import Cheap, installed, to_the_end, wanted

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "automl"))

from small_studies import RATE, carry_out, history, install
from tiny_world import tiny_data, tiny_model, tiny_spec

from tests.platforms.conftest import state
from vidqa.automl import commands
from vidqa.core.problem import ProblemError
from vidqa.gaps.deft.commands import create
from vidqa.gaps.deft.context import StageContext, StageResult
from vidqa.gaps.deft.loop import Loop, PendingStage
from vidqa.gaps.deft.stages import Stage

__all__ = ["state"]
WORDS = f"study=--algorithm random --trials 3 --range {RATE}=1e-6..1e-2:log --set finals.seeds=[]"
KEPT = "train.train_batch_per_replica=4 train.optm_weight_decay=0.0 train.optm_decay_type=cosine train.epoch=4"


class Searching(Cheap):
    """Validation hands on a spec that can be trained; the stage that trains is the loop's own."""

    recipe = Path()

    def of(self, stage: Stage) -> Stage:
        return stage if stage.name == "train" else super().of(stage)

    def other(self, context: StageContext, stage: Stage) -> StageResult:
        if stage.name != "validate":
            return super().other(context, stage)
        made = context.place / "train.toml"
        shutil.copyfile(self.recipe, made)
        return StageResult("fit to be trained", {"training spec": made})


def recipe(folder: Path) -> Path:
    """A training that can be planned, with validation."""
    sets = {
        "validation.enable": True,
        "train.train_policy.dataset.test_size": 0.5,
        "train.epoch": 4,
        "logging.experiment_name": "well",
    }
    return tiny_spec(folder, tiny_model(folder), tiny_data(folder, clips=4, images=0, texts=0), sets)


def test_the_best_training_of_a_study_is_the_rounds_and_one_that_stopped_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch.setattr)
    cheap = Searching()
    cheap.recipe = recipe(tmp_path / "small")
    installed(monkeypatch, cheap)
    words = " ".join([WORDS, *(f"--fix {each}" for each in KEPT.split())])
    keys = "train=validation.enable=true train.train_policy.dataset.test_size=0.5"
    loop, _ = create(tmp_path / "loop", wanted(tmp_path, words, keys, "stop.rounds=1"))
    while not (isinstance(pending := loop.pending(), PendingStage) and pending.stage.name == "train"):
        loop.next()

    with monkeypatch.context() as stopped:
        stopped.setattr(commands, "start", lambda study: (study / commands.LOG).write_text(""))
        stopped.setattr(commands, "status", lambda _: commands.Result({}))  # there is none yet
        with pytest.raises(ProblemError, match="no winner"):
            loop.next()
    assert loop.state.ending and loop.state.ending.waits

    def start(study: Path) -> int:
        carry_out(study)
        return (study / commands.LOG).write_text("")

    monkeypatch.setattr(commands, "start", start)
    assert to_the_end(Loop(loop.folder)).rule == "rounds"
    trained = Loop(loop.folder).state.rounds[1].stages["train"]
    study = Path(str(trained.facts["study"]))
    assert (Path(str(trained.facts["run_dir"])) / "metrics.jsonl").is_file() and (study / "report.html").is_file()
    assert f"of 3 of the study in {study}" in trained.sentence
    assert trained.cost.seconds == history(study).seconds  # whole seconds of jobs that take none
