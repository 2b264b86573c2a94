"""What --dry-run --out writes is what a launch submits, and the command that it prints runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import run_here

from tests.platforms.conftest import ENOUGH_S
from tests.platforms.slurm_cluster import SlurmCluster
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import job_results
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import dry_run, launch
from vidqa.jobs.platforms import platform
from vidqa.jobs.platforms._base import State
from vidqa.jobs.resources import Resources

WriteSpec = Callable[..., Path]
LAUNCH = Path(__file__).resolve().parents[2] / "scripts" / "launch.py"


def script(*words: object) -> tuple[int, dict]:
    asked = [sys.executable, LAUNCH, "train", *words, "--json", "--skip-preflight"]
    ran = run_here(list(map(str, asked)), cwd=Path.cwd())
    return ran.returncode, json.loads(ran.stdout)


def until_complete(run_dir: Path) -> None:
    deadline = time.monotonic() + ENOUGH_S
    status = run_dir / "status.json"
    while not status.exists() or json.loads(status.read_text())["state"] != "COMPLETE":
        log = run_dir / "log.txt"
        assert time.monotonic() < deadline, log.read_text() if log.exists() else f"no {log}"
        time.sleep(0.1)


def test_the_files_of_a_local_job_run_by_hand(stand_in: None, write_spec: WriteSpec, tmp_path: Path) -> None:
    made, look = dry_run("train", write_spec("complete"), "local"), tmp_path / "a look"
    shown = job_results.of_dry_run(made, platform("local"), look)
    assert {path.name: path.read_text() for path in look.iterdir()} == job_results.files_of(made)
    assert (look / "spec.toml").read_text() == made.spec_toml and not (tmp_path / "runs").exists()
    (submit,) = shown.next
    subprocess.run(["bash", "-c", submit], check=True, timeout=ENOUGH_S, cwd=tmp_path)
    until_complete(made.job.run_dir)


@pytest.mark.slurm
def test_the_files_of_a_slurm_job_run_by_hand(
    slurm: SlurmCluster, stand_in: None, write_spec: WriteSpec, tmp_path: Path
) -> None:
    made, look = dry_run("train", write_spec("complete"), "slurm"), tmp_path / "a look"
    shown = job_results.of_dry_run(made, platform("slurm"), look)
    files = {path.name: path.read_text() for path in look.iterdir()}
    assert files == {**made.rendered.files, "spec.toml": made.spec_toml} and not (tmp_path / "runs").exists()
    (submit,) = shown.next
    done = subprocess.run(["bash", "-c", submit], capture_output=True, text=True, timeout=ENOUGH_S, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("Submitted batch job "), done
    until_complete(made.job.run_dir)
    assert slurm.ask("scontrol", "write", "batch_script", done.stdout.split()[-1], "-") == files["job.sbatch"].strip()


def test_the_script_writes_and_says_how_to_submit(write_spec: WriteSpec, tmp_path: Path) -> None:
    code, result = script("--spec", write_spec("complete"), "--dry-run", "--out", tmp_path / "look")
    assert code == Exit.OK and result["data"]["submit"] in result["next"]
    assert sorted(result["data"]["written"]) == sorted(map(str, (tmp_path / "look").iterdir()))
    _, looked_at = script("--spec", write_spec("complete"), "--dry-run")
    assert looked_at["next"] == looked_at["data"]["written"] == []


def test_a_job_that_a_launch_would_refuse_is_written_and_not_offered(write_spec: WriteSpec, tmp_path: Path) -> None:
    spec = write_spec("complete", processes=2)
    code, result = script("--spec", spec, "--gpus", 1, "--dry-run", "--out", tmp_path / "look")
    assert code == Exit.ENVIRONMENT and result["next"] == [] and (tmp_path / "look/run.sh").is_file()


def test_a_folder_that_cannot_be_written_is_a_problem(write_spec: WriteSpec, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, result = script("--spec", write_spec("complete"), "--dry-run", "--out", tmp_path / "file/look")
    assert code == Exit.ENVIRONMENT and [p["code"] for p in result["problems"]] == ["ENV_FILE_REFUSED"]


def test_only_a_dry_run_writes_elsewhere_than_into_the_run_folder(write_spec: WriteSpec, tmp_path: Path) -> None:
    code, result = script("--spec", write_spec("complete"), "--out", tmp_path / "look")
    assert code == Exit.USAGE and "--dry-run" in result["problems"][0]["message"]
    assert not (tmp_path / "look").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_several_nodes_on_one_machine_are_a_problem(write_spec: WriteSpec, words: tuple[str, ...]) -> None:
    code, result = script("--spec", write_spec("complete", processes=2), "--nodes", 2, *words)
    assert code == Exit.INPUT and [p["code"] for p in result["problems"] if p["severity"] == "error"] == [
        "PLATFORM_NODES"
    ]


def for_the_nodes(spec: Path, nodes: Path, names: tuple[str, ...]) -> Resources:
    """Moves folders of a spec to one that only the nodes see, and declares that."""
    text = spec.read_text()
    for name in names:
        text = text.replace(f'"{spec.parent / name}"', f'"{nodes / name}"')
    spec.write_text(text)
    site = spec.with_name("site.toml")
    site.write_text(f'[slurm]\ncluster_paths = ["{nodes}"]\n')
    return Resources(site=site)


@pytest.mark.slurm
def test_a_model_and_annotations_that_only_the_nodes_see(
    slurm: SlurmCluster, stand_in: None, write_spec: WriteSpec, tmp_path: Path
) -> None:
    spec, nodes = write_spec("complete"), tmp_path / "nodes"
    launched = launch("train", spec, "slurm", for_the_nodes(spec, nodes, ("model", "annotations.json")))
    assert "PLATFORM_NOT_SEEN" in [problem.code for problem in launched.problems] and not nodes.exists()
    record = jobs.wait(launched.record, ENOUGH_S)
    assert record.state == State.COMPLETE, record.log.read_text()
    assert str(nodes / "model") in Path(record.run_dir, "spec.toml").read_text()
    assert launch("train", spec, "slurm", Resources(site=spec.with_name("site.toml"))).how == "done"


@pytest.mark.slurm
def test_files_for_an_output_folder_that_only_the_nodes_see(
    slurm: SlurmCluster, stand_in: None, write_spec: WriteSpec, tmp_path: Path
) -> None:
    """It comes into being after the files: here the nodes see the same disk as the launcher."""
    look = tmp_path / "look"
    spec, resources = for_a_cluster_elsewhere(write_spec("complete"), tmp_path / "nodes")
    made = dry_run("train", spec, "slurm", resources)
    shown = job_results.of_dry_run(made, platform("slurm"), look)
    assert shown.code == Exit.OK and shown.next == [] and not (tmp_path / "nodes").exists()
    with pytest.raises(ProblemError, match="PLATFORM_NOT_SHARED"):
        launch("train", spec, "slurm", resources)
    lay_out(tmp_path / "nodes")
    subprocess.run(["bash", "-c", shown.data["submit"]], check=True, cwd=look, timeout=ENOUGH_S)
    until_complete(made.job.run_dir)


def for_a_cluster_elsewhere(spec: Path, nodes: Path) -> tuple[Path, Resources]:
    """A spec and settings for a cluster on which all lies below `nodes`."""
    text = spec.read_text().replace(f'"{spec.parent}/', f'"{nodes}/')
    spec.write_text(text.replace(f'"{spec.parent}"', f'"{nodes}"'))
    site = spec.with_name("site.toml")
    site.write_text(f'[slurm]\ncluster_paths = ["{nodes}"]\ncheckout = "{nodes}/skill"\n')
    return spec, Resources(site=site)


def lay_out(nodes: Path) -> None:
    """What the cluster has: data, a model, and the skill with its environment."""
    (nodes / "model").mkdir(parents=True)
    (nodes / "annotations.json").write_text("[]")
    (nodes / "skill").symlink_to(LAUNCH.parents[1])


def test_files_for_a_cluster_that_this_machine_does_not_see_are_submitted_as_written(
    write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in them names this machine, and there they say what is missing before they submit anything."""
    nodes, look, copy = tmp_path / "lustre", tmp_path / "look", tmp_path / "login/copy"
    spec, resources = for_a_cluster_elsewhere(write_spec("complete", processes=4), nodes)
    spec.write_text(spec.read_text().replace("dp_shard_size = 4", "dp_shard_size = 4\ndp_replicate_size = 1"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no SLURM here
    code, result = script(
        "--spec", spec, "--platform", "slurm", "--site", resources.site, "--nodes", 2, "--dry-run", "--out", look
    )
    told = {problem["code"]: problem["severity"] for problem in result["problems"]}
    assert (code, set(told.values()), result["next"]) == (Exit.OK, {"warning"}, []), result
    assert {"PLATFORM_NOT_SHARED", "PLATFORM_SITE_SETTINGS", "SPEC_DP_MISMATCH"} <= set(told)
    launcher = (str(LAUNCH.parents[1]), str(Path.home()), str(look), sys.prefix)
    texts = {path.name: path.read_text() for path in look.iterdir()}
    assert set(texts) == {"spec.toml", "job.sbatch", "node.sh", "submit.sh"}
    assert [(name, word) for name, text in texts.items() for word in launcher if word in text] == []
    copy.parent.mkdir()
    look.rename(copy)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text('#!/bin/sh\necho "$PWD" "$@"\n')
    (tools / "sbatch").chmod(0o755)

    def submit(folder: Path = copy) -> subprocess.CompletedProcess[str]:
        there = {"PATH": f"{tools}:/usr/bin:/bin"}
        submit = ["bash", *result["data"]["submit"].split()[1:]]
        return subprocess.run(submit, cwd=folder, env=there, capture_output=True, text=True)

    refused = submit()
    assert refused.returncode == 3 and f"the cluster has no {nodes / 'model'}" in refused.stderr
    lay_out(nodes)
    run_dir = result["data"]["run_dir"]
    assert (submit().stdout, submit().returncode) == (f"{run_dir} job.sbatch\n", 0)
    assert {path.name: path.read_text() for path in Path(run_dir).iterdir()} == {
        name: text for name, text in texts.items() if name != "submit.sh"
    }
    shutil.copy(copy / "submit.sh", run_dir)  # the copy may be the run folder itself
    assert submit(Path(run_dir)).returncode == 0
    *exports, supervisor, _ = [line for line in texts["node.sh"].splitlines() if line and not line.startswith("#")]
    python = supervisor.removeprefix("exec ").split()[0]
    check = "\n".join([*exports, f"exec {python} -c 'import vidqa.jobs.platforms.supervisor'"])
    subprocess.run(["bash", "-c", check], env={"PATH": "/usr/bin:/bin"}, check=True)


def test_a_cluster_elsewhere_needs_a_checkout_and_all_inputs(
    write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    spec, resources = for_a_cluster_elsewhere(write_spec("complete"), tmp_path / "nodes")
    site = resources.site
    assert site is not None
    site.write_text(site.read_text().replace("checkout", "# checkout"))
    spec.write_text(spec.read_text().replace(f'"{tmp_path}/nodes/model"', f'"{tmp_path}/model"'))
    wrong = {(p.code, p.where) for p in dry_run("train", spec, "slurm", resources).problems if p.severity == "error"}
    assert wrong == {("PLATFORM_SITE_SETTINGS", "checkout"), ("PLATFORM_PATH_UNSEEN", str(tmp_path / "model"))}
