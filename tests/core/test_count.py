"""An action of another package is one declaration: scripts, preflight, jobs, engine and pages take it as it is.

`count_action.py` declares it. It is laid out as pip would install it, with an entry point of the group vidqa.actions,
and what works below is what a user types, in processes of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import write_pages
from programs import run_here

from vidqa.core.cli import SKILL_ROOT
from vidqa.engine.families.tiny_qwen3_vl import write_tiny_model

HERE = Path(__file__).parent
Run = Callable[..., dict[str, Any]]
Refused = Callable[..., dict[str, Any]]


def test_the_declaration_is_short() -> None:
    assert len((HERE / "count_action.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed package with the action, a model, and five records, one of them without an answer."""
    folder = tmp_path_factory.mktemp("world")
    package = folder / "site-packages"
    (package / "count_action-1.dist-info").mkdir(parents=True)
    (package / "count_action-1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: count-action\nVersion: 1\n"
    )
    (package / "count_action-1.dist-info/entry_points.txt").write_text("[vidqa.actions]\ncount = count_action:COUNT\n")
    for name in ("count_action.py", "count_checks.py"):
        shutil.copy(HERE / name, package)
    write_tiny_model(folder / "model")
    turns = [[{"from": "human", "value": f"Is it {n}?"}, {"from": "gpt", "value": "yes " * n}] for n in range(5)]
    records = [{"id": f"r{n}", "conversations": each if n else each[:1]} for n, each in enumerate(turns)]
    (folder / "data").mkdir()
    (folder / "data/annotations.json").write_text(json.dumps(records))
    return folder


@pytest.fixture(scope="module")
def variables(world: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(world / "site-packages"),
        "VIDQA_STATE_DIR": str(world / "state"),
        "VIDQA_CACHE_DIR": str(world / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.fixture(scope="module")
def run(world: Path, variables: dict[str, str]) -> Run:
    def script(name: str, *words: object, code: int = 0) -> dict[str, Any]:
        command = [sys.executable, str(SKILL_ROOT / f"scripts/{name}.py"), *map(str, words), "--json"]
        done = subprocess.run(command, cwd=world, env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    return script


@pytest.fixture
def refused(world: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """The one problem of a script, run in this process."""
    monkeypatch.syspath_prepend(world / "site-packages")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def script(name: str, *words: object) -> dict[str, Any]:
        done = run_here([sys.executable, str(SKILL_ROOT / f"scripts/{name}.py"), *map(str, words), "--json"], cwd=world)
        assert done.returncode == 3, done.stdout + done.stderr
        (problem,) = json.loads(done.stdout)["problems"]
        return problem

    return script


@pytest.fixture(scope="module")
def spec(world: Path, run: Run) -> Path:
    out, words = world / "count.toml", ("--model", world / "model", "--results-dir", world / "runs")
    built = run("build_spec", "count", "--eval-root", world / "data", *words, "--set", "n=3", "--out", out)
    assert built["problems"] == [] and built["data"]["action"] == "count"
    return out


def test_build_spec_knows_its_keys(spec: Path, refused: Refused) -> None:
    assert "at_once = 3" in spec.read_text()
    unknown = refused("build_spec", "count", "--set", "at_onse=3")
    assert unknown["code"] == "SPEC_UNKNOWN_KEY" and "at_once" in unknown["remedy"]
    assert refused("build_spec", "count", "--parent-run", spec.parent)["code"] == "SPEC_PARENT_RUN"


def test_preflight_finds_the_action_and_carries_out_its_own_check(spec: Path, run: Run) -> None:
    report = run("preflight", "--spec", spec)
    assert report["data"]["action"] == "count" and "launch.py count --spec" in report["next"][0]
    checks = {check["name"]: check["status"] for group in report["data"]["groups"] for check in group["checks"]}
    assert checks["enough to count"] == checks["tokenizer and chat template"] == "ok"
    assert checks["annotations"] == "warning"  # they name no media
    assert checks["tokens"] == checks["GPU memory"] == checks["frame cache"] == "skipped"
    assert report["data"]["facts"]["worth_counting"] == report["data"]["facts"]["counted_records"] == 5


def test_a_spec_of_another_action_is_refused(spec: Path, refused: Refused) -> None:
    problem = refused("launch", "train", "--spec", spec)
    assert problem["code"] == "SPEC_ACTION" and "a spec for count" in problem["message"]


@pytest.mark.slow
def test_its_job_stops_goes_on_and_ends(world: Path, spec: Path, run: Run) -> None:
    (problem,) = run("launch", "count", "--spec", _with(spec, "go_on = true"), code=3)["problems"]
    assert problem["where"] == "go_on"  # there is nothing yet to go on with
    first = run("launch", "count", "--spec", spec, "--wait", code=6)["data"]
    assert (first["action"], first["state"], first["processes"]) == ("count", "STOPPED", 1)
    assert first["message"] == ""  # the state says it
    assert first["model"] == str(world / "model") and len(_counts(first)) == 3
    assert "counted 3 records" in run("jobs", "logs", first["job_id"])["data"]["lines"]
    again = run("jobs", "retry", first["job_id"])["data"]
    done = run("jobs", "wait", again["job_id"])
    assert (done["data"]["state"], done["data"]["run_dir"]) == ("COMPLETE", first["run_dir"])
    assert len(_counts(first)) == 5
    assert done["data"]["tokens"] == sum(_counts(first).values()) and done["next"][-1] == "echo done"
    assert run("launch", "count", "--spec", spec)["data"]["how"] == "done"
    listed = run("jobs", "list")["data"]["jobs"]
    assert {job["action"] for job in listed} == {"count"} and run("jobs", "status")["data"]["state"] == "COMPLETE"


def test_its_pages_are_generated(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = world / "pages"
    pages.mkdir()
    shutil.copy(SKILL_ROOT / "config.json", pages)
    monkeypatch.syspath_prepend(world / "site-packages")
    monkeypatch.setattr(write_pages, "generated", write_pages.generated.__wrapped__)  # others cache theirs
    assert write_pages.main(["--root", str(pages)]) == 0
    assert json.loads((pages / "schemas/count.schema.json").read_text())["additionalProperties"] is False
    assert "at_once: 1000" in (pages / "references/spec_template_count.yaml").read_text()
    assert "| `count.annotation_path` |" in (pages / "references/parameters_count.md").read_text()
    assert list(json.loads((pages / "schemas/manifest.json").read_text())["actions"]) == [
        "train",
        "evaluate",
        "inference",
        "embed",
        "grpo",
        "quantize",
        "count",
    ]
    entry = json.loads((pages / "config.json").read_text())["actions"]["count"]
    assert (entry["model_key"], entry["resume_key"], entry["automl"]) == ("tokenizer", "go_on", False)


def _with(spec: Path, line: str) -> Path:
    changed = spec.with_name("changed.toml")
    changed.write_text(spec.read_text().replace("go_on = false", line))
    return changed


def _counts(job: dict[str, Any]) -> dict[str, int]:
    return json.loads((Path(job["run_dir"]) / "counts.json").read_text())
