"""The quickstart's runner: its specs are valid, a failing step ends it with that step's exit code."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from programs import program

from vidqa.contract.cli import SKILL_ROOT
from vidqa.demo.recipe import EVALUATE, TRAIN


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    return program(SKILL_ROOT / "workflow" / "quickstart" / "run.py")


@pytest.mark.parametrize(("action", "overrides"), [("train", TRAIN), ("evaluate", EVALUATE)])
def test_the_recipe_makes_a_valid_spec(
    quickstart: ModuleType, tmp_path: Path, action: str, overrides: dict[str, object]
) -> None:
    root, out = tmp_path / "data", tmp_path / "spec.toml"
    root.mkdir()
    turns = [{"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "yes"}]
    record = {"id": "a", "video": "a.mp4", "conversations": turns}
    (root / "annotations.json").write_text(json.dumps([record]), encoding="utf-8")
    option = "--train-root" if action == "train" else "--eval-root"
    quickstart.build(action, out, option, root, "--model", tmp_path, overrides=overrides)
    assert "nframes = 8" in out.read_text(encoding="utf-8")


def test_a_failing_step_ends_the_demo_with_its_exit_code(quickstart: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        quickstart.script("preflight", "--spec", tmp_path / "missing.toml", "--platform", "local")
    assert stopped.value.code == 3


def test_every_script_the_runner_names_exists() -> None:
    text = (SKILL_ROOT / "workflow" / "quickstart" / "run.py").read_text(encoding="utf-8")
    for name in ("build_spec", "preflight", "launch", "analyze_gaps", "run_deft"):
        assert f'script("{name}"' in text and (SKILL_ROOT / "scripts" / f"{name}.py").exists()
