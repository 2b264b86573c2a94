"""Modules that lie in the folder of a launch: no process of a job imports them, whoever starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import engine_command, tiny_data, tiny_model, tiny_spec

from vidqa.core.run_folder import RunFolder
from vidqa.engine.__main__ import run_upload
from vidqa.preflight import gpus

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
NAMES = ("accelerate", "json", "numpy", "pydantic", "subprocess", "torch", "transformers", "yaml")
PLANTED = "import os\nopen(f'{}/{}-in-{{os.getpid()}}', 'w').close()\nraise SystemExit('planted')\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with modules that write down that they ran."""
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "ran").mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(PLANTED.format(tmp_path / "ran", name))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def ran(world: Path) -> list[str]:
    return sorted(path.name for path in (world / "ran").iterdir())


def spec_of(world: Path, ranks: int) -> Path:
    small = {"policy.parallelism.dp_shard_size": ranks, "train.max_num_steps": 1, "custom.vision.nframes": 2}
    root = tiny_data(world, clips=4, images=0, texts=0)
    return tiny_spec(world, tiny_model(world), root, small)


def test_the_planted_modules_would_run(here: Path) -> None:
    subprocess.run([sys.executable, "-c", "import yaml"], capture_output=True)
    assert [name.partition("-")[0] for name in ran(here)] == ["yaml"]


def test_a_training_of_two_processes_is_checked_and_launched_from_there(here: Path) -> None:
    spec = spec_of(here, ranks=2)
    for words in (["preflight.py"], ["launch.py", "train", "--wait"]):
        command = [sys.executable, str(SCRIPTS / words[0]), *words[1:], "--spec", str(spec), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["data"]["state"] == "COMPLETE" and ran(here) == []


def test_a_rank_of_a_torchrun_that_is_started_by_hand(here: Path) -> None:
    python, *words = engine_command("train", spec_of(here, ranks=1), here / "run")
    done = subprocess.run([python, "-P", *words], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and ran(here) == [], done.stderr[-3000:]


def test_a_question_to_torch_about_gpus(here: Path) -> None:
    assert gpus.engine_build() is not None and ran(here) == []


def test_an_upload_after_a_training(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (here / "run").mkdir()
    run_upload(RunFolder(here / "run"))
    assert ran(here) == []
