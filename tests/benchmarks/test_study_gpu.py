"""What study_gpu.py tells of a study: the share of the time in which GPUs worked, and where each trial's time went."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from study_gpu import FIRST_S, told

from vidqa.automl.events import fields_of

BEGAN = 1_800_000_000.0
SETTINGS = {"algorithm": "random", "goals": [{"metric": "val/avg_loss", "direction": "minimize"}], "max_trials": 2}
USUAL: dict[str, Any] = {  # by the name of a field, where a test does not say it
    **{"schema_version": 1, "fingerprint": "", "settings": SETTINGS, "space": {}, "rungs": [[1]], "version": ""},
    **{"number": 0, "values": {}, "proposer": "random", "rung": 0, "bracket": 0, "parent": None, "extra": {}},
    **{"repairs": [], "work": "", "job_id": "", "how": "started", "gpus": [], "places": 1, "state": "complete"},
    **{"run_dir": "", "seconds": 0.0, "gpu_seconds": 0.0, "failure": None, "steps": 1, "objectives": [1.0]},
    **{"metrics": {}, "request": "", "verb": "stop", "said": {}, "why": ""},
}


def write_study(folder: Path, *moments: tuple[float, str, dict[str, Any]]) -> None:
    """A journal of events at these seconds after its begin; other fields have the usual values."""
    lines = []
    for at, event, fields in moments:
        known = {name: USUAL[name] for name in fields_of(event)}
        time = datetime.fromtimestamp(BEGAN + at, UTC).isoformat()
        lines.append({"seq": len(lines) + 1, "time": time, "elapsed_s": at, "event": event, **known, **fields})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(folder: Path, number: int, steps: list[float]) -> None:
    run = folder / f"trials/{number}/runs/a"
    run.mkdir(parents=True)
    rows = [
        {"step": at, "time": BEGAN + time, "train/loss": 1.0, "perf/memory_gib": 9.0} for at, time in enumerate(steps)
    ]
    rows.append({"step": len(steps), "time": BEGAN + steps[-1] + 2, "val/avg_loss": 1.0})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, after in (("best.json", 3), ("run.json", 8)):
        (run / name).write_text("{}")
        os.utime(run / name, (BEGAN + steps[-1] + after,) * 2)


def test_gpus_count_after_the_first_minute_and_stretches_add_up(tmp_path: Path) -> None:
    work = {"work": "trial-0/rung-0/train"}
    other = {"work": "trial-1/rung-0/train"}
    write_study(
        tmp_path,
        (0, "created", {}),
        (1, "trial", {"number": 0}),
        (5, "submitted", work),
        (6, "trial", {"number": 1}),
        (80, "submitted", other),
        (150, "ended", work),
        (150, "measured", {"number": 0}),
        (151, "taken", {}),
        (300, "stopped", {}),  # with trial 1 under way: what came after its last event does not count
    )
    write_run(tmp_path, 0, [65, 100, 140])
    busy = [(BEGAN + FIRST_S - 10, 0, 0.0), (BEGAN + 100, 0, 1.0), (BEGAN + 101, 1, 0.5), (BEGAN + 200, 0, 0.0)]
    found = told(tmp_path, busy)
    assert (found["s"], found["busy"], found["ended_trials"], found["memory_gib"]) == (150, 0.75, 1, 9.0)
    (each,) = found["each"]
    spent = {"launch_s": 4, "start_s": 60, "steps_s": 75, "measured_s": 2, "exported_s": 3, "proved_s": 8, "end_s": 10}
    assert {name: each[name] for name in spent} == pytest.approx(spent)
    assert found["median_start_s"] == 60 and told(tmp_path, [])["busy"] is None
