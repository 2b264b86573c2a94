"""A study of real trainings and evaluations, as small as they can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_studies import RATE, carry_out
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa.automl.plan import PlanRequest, plan
from vidqa.automl.report import report
from vidqa.spec import Layer, dump, resolve


def evaluation(folder: Path, model: Path, root: Path) -> Path:
    table = {
        "dataset.annotation_path": str(root / "annotations.json"),
        "dataset.media_dir": str(root),
        "model.model_name": str(model),
        "model.dtype": "float32",
        "generation.max_tokens": 2,
        "vision.nframes": 4,
        "num_gpus": 1,
    }
    path = folder / "evaluate.toml"
    path.write_text(dump(resolve("evaluate", [Layer("test", table)]).spec))
    return path


@pytest.mark.slow
def test_a_real_trial_is_trained_and_evaluated_beside_the_untrained_model(tmp_path: Path) -> None:
    model, data = tiny_model(tmp_path), tiny_data(tmp_path, clips=2, images=0, texts=0)
    asked = PlanRequest(
        tiny_spec(tmp_path, model, data),
        evaluation(tmp_path, model, data),
        range=(f"{RATE}=1e-4..1e-2:log",),
        fix=("train.train_batch_per_replica=4", "train.optm_weight_decay=0.0"),
        set=("finals.seeds=[]",),
        algorithm="random",
        trials=1,
    )
    planned = plan(tmp_path / "study", asked)
    assert planned.data["first"][0]["proposer"] == "template" and ("STUDY_SETTINGS", "max_trials") in [
        (p.code, p.where) for p in planned.problems
    ]
    assert ("DATA_SPLIT_LEAK", "train and evaluation") in [
        (problem.code, problem.where) for problem in planned.problems
    ]
    found = carry_out(tmp_path / "study")
    assert found.finished and found.winner == 0
    trial, baseline = found.trials[0], found.scores["baseline"]
    assert trial.measured[0].objectives == (trial.metrics["accuracy"],) and "accuracy" in baseline
    assert Path(trial.metrics["run_dir"]) != Path(baseline["run_dir"]) and trial.measured[0].steps == 1
    rows = {row["who"]: row for row in report(tmp_path / "study").data["table"]}
    assert rows["template, winner"]["ci95"] and rows["model before training"]["ci95"]
