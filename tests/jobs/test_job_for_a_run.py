"""A job id stands for its run folder wherever a script takes one."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from programs import run_here

from tests.skill.skill_pages import parser_of
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.run_folder import run_named

JOB = "20260101T120000Z-1a2b3c"
# The words of a script, of which {} takes a run, and the option that holds it.
TAKES = {
    "analyze_gaps": ("--results-dir {} --gaps-parquet g --kpi-ann-path k", "results_dir"),
    "build_spec": ("evaluate --parent-run {}", "parent_run"),
    "compare": ("{} other", "before"),
    "export": ("{} --out o", "run"),
    "infer": ("--model {} --video v --question q", "model"),
    "mine_samples": ("--gaps g --pool {} --query q --out o", "pool"),
    "run_benchmark": ("--data d --model {}", "model"),
    "run_deft": ("init loop --model {}", "model"),
    "score_results": ("{}", "results"),
    "serve": ("--model {}", "model"),
    "upload": ("{}", "run"),
}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder of a recorded job, with an export that it calls its best."""
    monkeypatch.setenv("VIDQA_STATE_DIR", str(tmp_path / "state"))
    run = tmp_path / "outputs" / JOB
    export = run / "safetensors/step_4"
    export.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    (export / "model.safetensors").touch()
    (run / "best").symlink_to("safetensors/step_4")
    (tmp_path / "state/jobs").mkdir(parents=True)
    (tmp_path / f"state/jobs/{JOB}.json").write_text(json.dumps({"job_id": JOB, "run_dir": str(run)}))
    return run


@pytest.mark.parametrize("script", TAKES)
def test_every_script_that_takes_a_run_takes_its_job(script: str, run_dir: Path) -> None:
    words, option = TAKES[script]
    parser = parser_of(SKILL_ROOT / f"scripts/{script}.py")
    for name, folder in ((JOB, run_dir), (f"{JOB}/best", run_dir / "best"), (str(run_dir), run_dir)):
        assert str(getattr(parser.parse_args(words.format(name).split()), option)) == str(folder)


@pytest.mark.parametrize(
    "name", ["no-such-job", "hf_model://nvidia/Cosmos-Reason2-2B", "s3://b/x", "../state", "", "."]
)
def test_any_other_name_stays_as_it_is(name: str, run_dir: Path) -> None:
    assert run_named(name) == name


def test_a_folder_of_that_name_comes_first(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_dir.parent)
    assert run_named(JOB) == JOB


def test_the_parent_job_of_an_evaluation_and_of_a_training(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "annotations.json").write_text("[]")

    def built(*words: object) -> str:
        command = [sys.executable, SKILL_ROOT / "scripts/build_spec.py", *words, "--json"]
        done = run_here(list(map(str, command)), cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        return str(json.loads(done.stdout)["data"]["spec"])

    evaluation = tomllib.loads(
        built("evaluate", "--parent-job-id", JOB, "--eval-root", tmp_path, "--results-dir", "out")
    )
    assert evaluation["model"]["model_name"] == str(run_dir / "safetensors/step_4")
    training = tomllib.loads(built("train", "--model", f"{JOB}/best", "--train-root", tmp_path))
    assert training["policy"]["model_name_or_path"] == str(run_dir / "best")
