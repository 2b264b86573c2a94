"""Samples that fail while the engine runs: left out, or the end of the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from clips import undecodable, write_clip
from in_process import train_here
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import QUARANTINE, RunFolder
from vidqa.engine.data.planned_samples import BadSamples, prepare_training
from vidqa.engine.distributed import Context, single_process_world
from vidqa.engine.quantize.run import calibration_of
from vidqa.planning.samples import calibration_planner, training_planner
from vidqa.preflight.budget_checks import tokens
from vidqa.preflight.inputs import Inputs
from vidqa.spec import Layer, load, resolve
from vidqa.video.problems import MEDIA_UNREADABLE, VIDEO_DECODE_TIMEOUT

LATE, BROKEN = (code.at("a.mp4", "not decoded") for code in (VIDEO_DECODE_TIMEOUT, MEDIA_UNREADABLE))


@pytest.mark.parametrize("problem", [LATE, BROKEN])
def test_a_sample_that_every_rank_leaves_out_is_named(tmp_path: Path, problem) -> None:
    run = RunFolder(tmp_path)
    before = MEDIA_UNREADABLE.at("before.mp4", "not decoded, before the run was resumed")
    run.add_to_quarantine([before])
    BadSamples(run, single_process_world(), "quarantine").report([problem])
    assert run.read_problems(QUARANTINE) == [before, problem]
    with pytest.raises(ProblemError, match="ENGINE_BAD_SAMPLE"):
        BadSamples(run, single_process_world(), "fail").report([problem])


def test_a_validation_that_measures_nothing_is_no_loss_of_nan(tmp_path: Path) -> None:
    """Its only sample is left out."""
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=2)
    rows = json.loads((root / "annotations.json").read_text())
    broken = root / rows[0]["video"]
    broken.write_bytes(undecodable(write_clip(broken, frames=64, fps=8, height=64)))
    (root / "held.json").write_text(json.dumps(rows[:1]))
    held = {"custom.val_dataset.annotation_path": str(root / "held.json"), "custom.val_dataset.media_path": str(root)}
    over = {"validation.enable": True, "validation.val_before_train": True, "engine.on_bad_sample": "quarantine"}
    spec = tiny_spec(tmp_path, model, root, {**held, **over, "engine.frame_cache_dir": str(tmp_path / "cache")})
    with pytest.raises(ProblemError, match="DATA_EMPTY at validation"):
        train_here(spec, tmp_path / "run")
    assert (tmp_path / "run/quarantine.json").exists()


def test_samples_that_fail_before_the_run_fail_it_or_are_named(tmp_path: Path) -> None:
    """One without a trained token, one without its video; and all of them if none is left."""
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=0, images=0, texts=4)
    rows = json.loads((root / "annotations.json").read_text())
    rows[2]["conversations"][1]["loss"] = False
    rows[3] |= {"video": "gone.mp4"}

    def named(rows: list[dict], on_bad_sample: str) -> list[str]:
        (root / "annotations.json").write_text(json.dumps(rows))
        spec = load(tiny_spec(tmp_path, model, root, {"engine.on_bad_sample": on_bad_sample}), "train")
        run, planner = RunFolder(tmp_path / f"{on_bad_sample}{len(rows)}"), training_planner(spec, model)
        run.path.mkdir()
        try:
            prepared = prepare_training(spec, planner, single_process_world(), run)
            assert len(prepared.train) == 2
        except ProblemError as failed:
            return [problem.code for problem in failed.problems] + [p.where for p in run.read_problems(QUARANTINE)]
        return [problem.where for problem in run.read_problems(QUARANTINE)]

    assert named(rows[:3], "fail") == ["SAMPLE_ANSWERS"]
    named_rows = named(rows, "quarantine")
    assert sorted("r2" in where for where in named_rows) == [False, True]
    code, *named_rows = named(rows[2:], "quarantine")
    assert code == "DATA_EMPTY" and len(named_rows) == 2

    asked = {"dataset.annotation_path": root / "annotations.json", "dataset.media_dir": root, "model.model_path": model}
    table = {key: str(path) for key, path in asked.items()} | {"engine.on_bad_sample": "quarantine"}
    (root / "annotations.json").write_text(json.dumps(rows))
    spec, run = resolve("quantize", [Layer("test", table)]).spec, RunFolder(tmp_path)
    assert len(calibration_of(spec, calibration_planner(spec, model), single_process_world(), run).samples) == 2
    missing, unlabelled = run.read_problems(QUARANTINE)
    assert "gone.mp4" in missing.message and "r2" in unlabelled.where and unlabelled.code == "SAMPLE_ANSWERS"


def test_validation_samples_without_an_answer_token_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=0, images=0, texts=5)
    rows = json.loads((root / "annotations.json").read_text())
    rows[4]["conversations"][1]["loss"] = False
    (root / "annotations.json").write_text(json.dumps(rows[:3]))
    (root / "held.json").write_text(json.dumps(rows[3:]))
    held = {"custom.val_dataset.annotation_path": str(root / "held.json"), "validation.enable": True}
    spec = load(path := tiny_spec(tmp_path, model, root, held), "train")
    prepared = prepare_training(spec, training_planner(spec, model), single_process_world(), RunFolder(tmp_path))
    message = "1 of 2 samples have no answer token, so no loss: r4"
    assert len(prepared.validation) == 2 and message in capsys.readouterr().err
    warnings = [p for p in tokens(Inputs(path, "train", "local")) if p.code == "SAMPLE_ANSWERS"]
    assert [(p.where, p.message, p.severity) for p in warnings] == [("validation", message, "warning")]


def test_a_video_that_came_late_on_some_ranks_of_a_context_ends_the_run(tmp_path: Path) -> None:
    shared = replace(single_process_world(), context=Context(0, 2))
    BadSamples(RunFolder(tmp_path), shared, "quarantine").report([BROKEN])
    with pytest.raises(ProblemError, match="ENGINE_BAD_SAMPLE"):
        BadSamples(RunFolder(tmp_path), shared, "quarantine").report([LATE])
