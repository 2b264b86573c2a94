"""What a job reads, by its spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vidqa.jobs.job_spec import load_job_spec
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.keys import value_at


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with annotations, a model folder and a Python file of the user's."""
    turns = [{"from": "human", "value": "<video>\nIs it?"}, {"from": "gpt", "value": "Yes"}]
    (tmp_path / "a.json").write_text(json.dumps([{"id": "a", "video": "a.mp4", "conversations": turns}]))
    (tmp_path / "a.mp4").write_bytes(b"x")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text("def score(item):\n    return 1\n")
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def require_own_file_in_job(inputs: Path, action: str, keys: dict[str, Any]) -> Any:
    """What lies beside own/mine.py is read by the job, and another content is another job. The resolved spec."""
    Path("spec.toml").write_text(dump(resolve(action, [Layer("test", keys)]).spec))
    job = load_job_spec(action, Path("spec.toml"), fetch=True)
    assert inputs / "own" in job.reads and all(".py:" not in str(path) for path in job.reads)
    (inputs / "own/mine.py").write_text("def score(item):\n    return 2\n")
    assert load_job_spec(action, Path("spec.toml"), fetch=True).inputs_fingerprint != job.inputs_fingerprint
    return job.resolved


def test_a_scoring_function_comes_with_what_lies_beside_it(inputs: Path) -> None:
    keys = {"dataset.annotation_path": "a.json", "model.model_name": "model", "results_dir": "out"}
    resolved = require_own_file_in_job(inputs, "evaluate", {**keys, "metrics.functions": "own/mine.py:score"})
    assert resolved.metrics.functions == f"{inputs}/own/mine.py:score"


@pytest.mark.parametrize("named", ["own/mine.py:score", ["format", "own/mine.py:score"], {"own/mine.py:score": 0.5}])
@pytest.mark.parametrize("key", ["train.train_policy.reward_function", "validation.reward_function"])
def test_reward_functions_come_with_what_lies_beside_them(inputs: Path, key: str, named: Any) -> None:
    keys = {"custom.train_dataset.annotation_path": "a.json", "policy.model_name_or_path": "model", key: named}
    resolved = require_own_file_in_job(inputs, "grpo", keys)
    absolute = json.loads(json.dumps(named).replace("own/", f"{inputs}/own/"))
    assert value_at(resolved, key) == absolute
