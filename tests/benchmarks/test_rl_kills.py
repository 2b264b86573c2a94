"""Reinforcement learning that is killed and goes on is, bit by bit, the run that nobody killed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import rl_kills

from vidqa.core.run_folder import rollout_file


@pytest.mark.slow
def test_a_run_that_is_killed_is_the_run_that_nobody_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With groups that are dropped and questions that are drawn for them; and a difference is told."""
    monkeypatch.setattr(rl_kills, "EARLY_S", 0.8)  # a fast machine starts and ends this run within seconds
    monkeypatch.setattr(rl_kills, "LONGEST_S", 0.4)
    place = rl_kills.prepare(tmp_path, steps=8)
    whole = rl_kills.whole(place, "dapo")
    run, kills = rl_kills.killed(place, "killed", "dapo", 2, random.Random(1))
    assert len(kills) == 2  # one while it starts, one after a checkpoint
    assert kills[1] > 0
    assert rl_kills.differences(run, whole) == {"same_metrics": True, "same_rollouts": True, "same_weights": True}
    dropped = [event.get("rollout/groups_dropped", 0) for event in rl_kills.metrics_of(run)]
    assert sum(dropped) > 0
    metrics = run / "metrics.jsonl"
    first, *others = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(json.dumps({**json.loads(first), "train/loss": 0.5}) + "\n" + "".join(others))
    rollout_file(run, 1).unlink()
    assert rl_kills.differences(run, whole) == {"same_metrics": False, "same_rollouts": False, "same_weights": True}
