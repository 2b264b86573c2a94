"""Trainings and evaluations with a stored plan are those without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from in_process import events, train_here
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa.core.run_folder import PLAN
from vidqa.planning.samples import Planner

KEYS = {"train.train_policy.dataset.test_size": 4, "validation.enable": True, "train.train_batch_per_replica": 4}


def test_a_training_with_a_stored_plan_is_the_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tiny_spec(tmp_path, tiny_model(tmp_path), tiny_data(tmp_path), KEYS)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    train_here(spec, first)
    for run in (second, third):
        run.mkdir()
        shutil.copyfile(first / PLAN, run / PLAN)
    with monkeypatch.context() as patch:
        patch.setattr(Planner, "plan", None)  # nobody plans again
        train_here(spec, second)
    assert "planning again" not in capsys.readouterr().err
    (third / PLAN).write_bytes((first / PLAN).read_bytes()[:-20])
    train_here(spec, third)
    assert "planning again: it is damaged" in capsys.readouterr().err
    for run in (second, third):
        for key in ("train/loss", "train/grad_norm", "val/avg_loss"):
            assert events(run, key) == events(first, key) != {}
        plans = [json.loads((each / "plan.json").read_text()) for each in (first, run)]
        assert plans[0] == plans[1]
