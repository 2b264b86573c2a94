"""The demo's last screen, from run folders as the engine leaves them."""

from __future__ import annotations

import json
from pathlib import Path

from demo.summary import summary


def write_scores(run: Path, accuracy: float) -> Path:
    row = {"n": 20, "accuracy": accuracy, "accuracy_ci95": [accuracy - 0.05, accuracy + 0.05]}
    run.mkdir()
    kinds = {"diagonal": row, "size": row}
    (run / "metrics.json").write_text(json.dumps({**row, "n": 40, "by_kind": kinds}), encoding="utf-8")
    return run


def test_the_table_has_all_scores_the_interval_the_step_time_and_the_places(tmp_path: Path) -> None:
    before, after = write_scores(tmp_path / "before", 0.25), write_scores(tmp_path / "after", 0.5)
    looped = write_scores(tmp_path / "looped", 0.9)
    events = [{"step": 1, "perf/step_s": 9.0}, {"step": 2, "perf/step_s": 0.1}, {"step": 3, "perf/step_s": 0.2}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    told = {"final": {"kpi": {"run_dir": str(looped)}}, "ending": {"sentence": "The target is reached."}}
    (tmp_path / "report.json").write_text(json.dumps(told), encoding="utf-8")

    lines = summary(before, tmp_path, after, tmp_path / "gaps.parquet", tmp_path).splitlines()

    assert lines[0].split()[:4] == ["kind", "questions", "before", "trained"] and "after the loop" in lines[0]
    assert lines[1].split() == ["size", "20", "25.0", "%", "50.0", "%", "90.0", "%", "85.0", "..", "95.0"]
    assert lines[2].startswith("diagonal (not in the training set)")
    assert lines[3].split()[:2] == ["all", "40"]
    assert "0.200 s per step (median)" in lines[5]
    assert str(after / "report.html") in lines[7] and str(tmp_path / "gaps.parquet") in lines[8]
    assert lines[9].endswith("The target is reached.") and str(tmp_path / "report.html") in lines[10]
