"""Preflight decodes what every record shows of a file, in one request for each file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clips import write_clip
from tiny_world import tiny_model

from vidqa.data import MediaRef, Record, Turn
from vidqa.planning.samples import Planner, Prompting
from vidqa.preflight.media_checks import _requests
from vidqa.preflight.report import preflight


def test_windows_of_a_file_are_decoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And counted as one file; each window is a sample of its own."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    clip = write_clip(tmp_path / "a.mp4", frames=20, fps=5)
    keys = {
        "dataset.annotation_path": str(clip),
        "model.model_name": str(tiny_model(tmp_path)),
        "vision.nframes": 2,
        "inference.window_s": 1.5,
        "results_dir": str(tmp_path / "results"),
    }
    (tmp_path / "spec.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    report = preflight(tmp_path / "spec.toml", "local")
    assert report.facts["asked"]["samples"] == 3
    assert report.facts["media_files"] == report.facts["media_decoded"] == 1


def test_all_views_of_a_file_are_decoded_at_once(tmp_path: Path) -> None:
    model, clip = tiny_model(tmp_path), write_clip(tmp_path / "a.mp4", frames=20, fps=5)

    def record(name: str, **keys: Any) -> Record:
        medium = MediaRef("video", "a.mp4", str(clip), keys=tuple(sorted(keys.items())))
        return Record(name, (Turn("user", (0, "Q")), Turn("assistant", ("A",))), (medium,))

    planner = Planner(model, SimpleNamespace(nframes=2), Prompting())
    samples, problems = planner.plan([record("whole"), record("part", video_start=1.0, video_end=2.0), record("again")])
    context: Any = SimpleNamespace(to_decode=samples)
    ((_, request),) = _requests(context)
    assert not problems and request.indices == (0, 5, 10, 19)
