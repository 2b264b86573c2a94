"""What a job reads, by its spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.jobs.job_spec import load_job_spec
from vidqa.spec import Layer, dump, resolve


def test_a_scoring_function_comes_with_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [{"from": "human", "value": "<video>\nIs it?"}, {"from": "gpt", "value": "Yes"}]
    (tmp_path / "a.json").write_text(json.dumps([{"id": "a", "video": "a.mp4", "conversations": turns}]))
    (tmp_path / "a.mp4").write_bytes(b"x")
    (tmp_path / "scoring").mkdir()
    (tmp_path / "scoring/mine.py").write_text("def score(item):\n    return 1\n")
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    keys = {"dataset.annotation_path": "a.json", "model.model_name": "model", "results_dir": "out"}
    spec = resolve("evaluate", [Layer("test", {**keys, "metrics.functions": "scoring/mine.py:score"})]).spec
    Path("evaluate.toml").write_text(dump(spec))
    job = load_job_spec("evaluate", Path("evaluate.toml"), fetch=True)
    assert job.resolved.metrics.functions == f"{tmp_path}/scoring/mine.py:score"  # type: ignore[attr-defined]
    assert tmp_path / "scoring" in job.reads and all(".py:" not in str(path) for path in job.reads)
    (tmp_path / "scoring/mine.py").write_text("def score(item):\n    return 2\n")
    assert load_job_spec("evaluate", Path("evaluate.toml"), fetch=True).inputs_fingerprint != job.inputs_fingerprint
