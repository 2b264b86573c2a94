"""Samples that fail while the engine runs: left out, or the end of the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.data.planned_samples import BadSamples
from vidqa.engine.distributed import Context, alone
from vidqa.video.problems import VIDEO_DECODE_TIMEOUT, VIDEO_UNREADABLE

LATE, BROKEN = (code.at("a.mp4", "not decoded") for code in (VIDEO_DECODE_TIMEOUT, VIDEO_UNREADABLE))


@pytest.mark.parametrize("problem", [LATE, BROKEN])
def test_a_sample_that_every_rank_leaves_out_is_named(tmp_path: Path, problem) -> None:
    run = RunFolder(tmp_path)
    BadSamples(run, alone(), "quarantine").report([problem])
    (named,) = json.loads((tmp_path / "quarantine.json").read_text())
    assert named["code"] == problem.code
    with pytest.raises(ProblemError, match="ENGINE_BAD_SAMPLE"):
        BadSamples(run, alone(), "fail").report([problem])


def test_a_video_that_came_late_on_some_ranks_of_a_context_ends_the_run(tmp_path: Path) -> None:
    shared = replace(alone(), context=Context(0, 2))
    BadSamples(RunFolder(tmp_path), shared, "quarantine").report([BROKEN])
    with pytest.raises(ProblemError, match="ENGINE_BAD_SAMPLE"):
        BadSamples(RunFolder(tmp_path), shared, "quarantine").report([LATE])
