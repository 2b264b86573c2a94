"""The runners of the demos: their specs are valid, a failing step ends them with that step's exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from demo.commands import build, python, script
from demo.recipe import EVALUATE, RL, RL_EVALUATE, RL_SFT, TRAIN
from vidqa.core.cli import SKILL_ROOT


@pytest.mark.parametrize(
    ("action", "overrides", "nframes"),
    [
        ("train", TRAIN, 8),
        ("evaluate", EVALUATE, 8),
        ("train", RL_SFT, 4),
        ("grpo", RL, None),
        ("evaluate", RL_EVALUATE, 4),
    ],
)
def test_the_recipe_makes_a_valid_spec(
    tmp_path: Path, action: str, overrides: dict[str, object], nframes: int | None
) -> None:
    root, out = tmp_path / "data", tmp_path / "spec.toml"
    root.mkdir()
    turns = [{"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "yes"}]
    record = {"id": "a", "video": "a.mp4", "conversations": turns}
    (root / "annotations.json").write_text(json.dumps([record]), encoding="utf-8")
    option = "--eval-root" if action == "evaluate" else "--train-root"
    build(action, out, option, root, "--model", tmp_path, overrides=overrides)
    assert nframes is None or f"nframes = {nframes}" in out.read_text(encoding="utf-8")


def test_a_failing_step_ends_the_demo_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        script("preflight", "--spec", tmp_path / "missing.toml", "--platform", "local")
    assert stopped.value.code == 3


@pytest.mark.parametrize("name", ["video_set", "rl_set"])
@pytest.mark.parametrize("words", [("--seed", "-1"), ("--clips", "0")])
def test_numbers_that_make_no_set_are_refused(tmp_path: Path, name: str, words: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        python(Path("workflow") / "demo" / f"{name}.py", "--out", tmp_path / "set", *words)
    assert stopped.value.code == 2 and not (tmp_path / "set").exists()


@pytest.mark.parametrize("workflow", ["quickstart", "rl"])
def test_every_script_the_runner_names_exists(workflow: str) -> None:
    text = (SKILL_ROOT / "workflow" / workflow / "run.py").read_text(encoding="utf-8")
    names = set(re.findall(r'script\("(\w+)"', text))
    assert "preflight" in names
    assert all((SKILL_ROOT / "scripts" / f"{name}.py").exists() for name in names)
