"""What is rendered for NVIDIA's container on each platform, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import tomli_w
import yaml
from programs import run_here

from vidqa.core.problem import ProblemError
from vidqa.jobs.cosmos_container import PROGRAM, ContainerFiles, prepare
from vidqa.jobs.resources import Resources

LAUNCH = Path(__file__).resolve().parents[2] / "scripts" / "launch.py"
IMAGE = "registry/cosmos-rl:1"


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., Path]:
    (tmp_path / "model").mkdir()
    turns = [{"from": "human", "value": "<video>Is it?"}, {"from": "gpt", "value": "yes"}]

    def write(more: dict[str, Any] | None = None, **record: Any) -> Path:
        rows = [{"id": str(number), "video": "a.mp4", "conversations": turns, **record} for number in range(8)]
        (tmp_path / "annotations.json").write_text(json.dumps(rows))
        table: dict[str, Any] = {
            "policy": {"model_name_or_path": str(tmp_path / "model"), "parallelism": {"dp_shard_size": 4}},
            "custom": {
                "train_dataset": {"annotation_path": str(tmp_path / "annotations.json"), "media_path": str(tmp_path)},
                "vision": {"nframes": 8},
            },
            "train": {"output_dir": str(tmp_path / "out"), "epoch": 2},
        }
        for name, value in (more or {}).items():
            *path, last = name.split(".")
            inside = table
            for part in path:
                inside = inside.setdefault(part, {})
            inside[last] = value
        (tmp_path / "spec.toml").write_text(tomli_w.dumps(table))
        return tmp_path / "spec.toml"

    return write


def rendered(spec: Path, platform: str, write: bool = False, **settings: Any) -> ContainerFiles:
    site = spec.with_name("site.toml")
    site.write_text(tomli_w.dumps({platform: settings}) if settings else "")
    image = None if settings.get("backend", "") == "venv" else IMAGE
    return prepare("train", spec, platform, Resources(image=image, site=site), write=write)


def refused(spec: Path, platform: str = "local", action: str = "train", **wanted: Any) -> list[str]:
    with pytest.raises(ProblemError) as raised:
        prepare(action, spec, platform, Resources(**wanted), write=False)
    return [problem.code for problem in raised.value.problems]


def test_slurm_files_for_a_cluster_elsewhere_are_submitted_there(spec: Callable[..., Path], tmp_path: Path) -> None:
    path, look = spec(), tmp_path / "look"
    site = path.with_name("site.toml")
    site.write_text(f'[slurm]\ncluster_paths = ["{tmp_path}"]\nimage = "registry#cosmos-rl:1"\nbackend = "pyxis"\n')
    asked = ["--engine", "cosmos-rl", "--platform", "slurm", "--site", site, "--dry-run", "--out", look, "--json"]
    words = [sys.executable, LAUNCH, "train", "--spec", path, "--skip-preflight", *asked]
    done = run_here(list(map(str, words)), cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.returncode, result["next"], result["data"]["submit"]) == (0, [], "bash submit.sh"), result
    assert {file.name for file in look.iterdir()} == {"cosmos.toml", "job.sbatch", "submit.sh"}
    with pytest.raises(ProblemError, match="PLATFORM_NOT_SHARED"):
        rendered(
            path, "slurm", write=True, cluster_paths=[str(tmp_path)], image="registry#cosmos-rl:1", backend="pyxis"
        )


def test_local_runs_the_rendered_program(spec: Callable[..., Path], tmp_path: Path) -> None:
    made = rendered(spec(), "local", write=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cosmos-rl").write_text('#!/bin/sh\nprintf "%s\\n" "$@"; echo "offline $HF_HUB_OFFLINE"\n')
    (tools / "cosmos-rl").chmod(0o755)
    path = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    ran = subprocess.run(made.submit, shell=True, capture_output=True, text=True, env=path, check=True)
    toml = made.folder / "cosmos.toml"
    assert ran.stdout.splitlines() == ["--config", str(toml), PROGRAM, "offline 1"]
    table = tomllib.loads(toml.read_text())
    assert "engine" not in table and table["train"]["train_policy"]["type"] == "sft"
    assert table["train"]["output_dir"] == str(tmp_path / "out") and table["policy"]["parallelism"]["tp_size"] == 1
    assert table["train"]["ckpt"]["upload_hf"] is False


def test_the_program_imports_what_lies_beside_it_and_nothing_from_the_working_folder(
    spec: Callable[..., Path], tmp_path: Path
) -> None:
    python = shlex.quote(sys.executable)
    for folder in ("tools", "programs", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tools/cosmos-rl").write_text(f'#!/bin/sh\n{python} -c "import yaml"\nexec {python} "$3"\n')
    (tmp_path / "tools/cosmos-rl").chmod(0o755)
    (tmp_path / "programs/own.py").write_text("import beside, on_the_path, yaml\n")
    (tmp_path / "programs/beside.py").write_text("print('beside')\n")
    (tmp_path / "on_the_path.py").write_text("print('on the path')\n")
    (tmp_path / "here/yaml.py").write_text("print('planted')\n")
    made = rendered(spec({"custom_script": str(tmp_path / "programs/own.py")}), "local", write=True)
    path = {"PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    words = {"shell": True, "text": True, "env": {**os.environ, **path}, "cwd": tmp_path / "here"}
    assert subprocess.check_output(made.submit, **words).splitlines() == ["beside", "on the path"]
    assert rendered(spec({"custom_script": "a.module"}), "local").files["run.sh"].endswith(" a.module\n")


def test_nothing_is_written_by_a_dry_run(spec: Callable[..., Path], tmp_path: Path) -> None:
    made = rendered(spec(), "local")
    assert not (tmp_path / "out").exists() and set(made.files) == {"cosmos.toml", "run.sh"}


def test_a_folder_that_cannot_be_written_is_a_problem(spec: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ProblemError, match="ENV_FILE_REFUSED"):
        rendered(spec(), "local", write=True)


def test_docker_mounts_what_the_spec_names(spec: Callable[..., Path], tmp_path: Path) -> None:
    made = rendered(spec({"custom_script": "/opt/other.py"}), "docker", read_only=["/srv/linked"])
    words = made.files["run.sh"]
    assert "--volume=/srv/linked:/srv/linked:ro" in words
    subprocess.run(["bash", "-n"], input=words, text=True, check=True)
    assert f"--volume={tmp_path / 'out'}:{tmp_path / 'out'} " in words and "--gpus=4" in words
    assert f"--volume={tmp_path}:{tmp_path}:ro" in words
    assert words.rstrip().endswith(f" /opt cosmos-rl --config {made.folder / 'cosmos.toml'} /opt/other.py")


@pytest.mark.parametrize("backend", ["venv", "apptainer", "pyxis"])
def test_slurm(spec: Callable[..., Path], tmp_path: Path, backend: str) -> None:
    far = tmp_path.parent / f"{tmp_path.name}-far"
    far.mkdir()
    (far / "a.mp4").touch()
    more = {"partition": "gpu", "setup": ["module load cuda"], "mounts": ["/scratch:/scratch"]}
    made = rendered(spec(video=str(far / "a.mp4")), "slurm", backend=backend, **more)
    script = made.files["job.sbatch"]
    mounted = ["/scratch:/scratch" in script, f"{far}:{far}:ro" in script]
    assert mounted == [backend != "venv"] * 2
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "#SBATCH --partition=gpu" in script and "#SBATCH --gpus-per-node=4" in script and "requeue" not in script
    assert script.index("#SBATCH") < script.index("module load cuda") < script.index("exec srun")
    shown = {"venv": "exec srun sh -c", "apptainer": "apptainer exec --nv", "pyxis": f"--container-image={IMAGE}"}
    assert shown[backend] in script and made.submit.startswith("sbatch ")


def test_slurm_without_a_container_refuses_an_image(spec: Callable[..., Path]) -> None:
    assert refused(spec(), "slurm", image=IMAGE) == ["PLATFORM_IMAGE_UNUSED"]


def test_kubernetes(spec: Callable[..., Path], tmp_path: Path) -> None:
    made = rendered(spec(), "kubernetes", volumes=[{"mount_path": str(tmp_path), "claim": "data"}])
    config, job = yaml.safe_load_all(made.files["manifest.yaml"])
    for each in (config, job):
        kubernetes_validate.validate(each, "1.34", strict=True)
    assert config["data"] == {"cosmos.toml": made.files["cosmos.toml"]}
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][-4:] == ["cosmos-rl", "--config", "/etc/vidqa/cosmos.toml", PROGRAM]
    assert job["spec"]["backoffLimit"] == 0 and container["image"] == IMAGE
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_what_the_container_cannot_do_is_refused(spec: Callable[..., Path]) -> None:
    assert refused(spec(), action="evaluate") == ["SPEC_NOT_SUPPORTED"]
    assert refused(spec(), "docker", nodes=2) == ["SPEC_NOT_SUPPORTED"] * 2  # nodes, and no image
    pissa = {"policy.lora": {"target_modules": ["q_proj"], "init_lora_weights": "pissa_niter_4"}}
    assert refused(spec(pissa)) == ["SPEC_NOT_SUPPORTED"]


def test_records_need_video_fps_where_frames_are_sampled_by_rate(spec: Callable[..., Path]) -> None:
    by_rate = {"custom.vision": {"fps": 2.0}}
    assert refused(spec(by_rate)) == ["SPEC_NOT_SUPPORTED"]
    assert rendered(spec(by_rate, video_fps=24.0), "local").problems == []


def test_what_only_the_container_can_do_is_rendered(spec: Callable[..., Path]) -> None:
    made = rendered(spec({"train.fp8": {"enable_fp8": True}}), "local")
    assert tomllib.loads(made.files["cosmos.toml"])["train"]["fp8"]["enable_fp8"] is True


def test_the_script_writes_and_says_how_to_submit(spec: Callable[..., Path], tmp_path: Path) -> None:
    words = [sys.executable, LAUNCH, "train", "--engine", "cosmos-rl", "--spec", spec(), "--json", "--skip-preflight"]
    ran = run_here(list(map(str, words)), cwd=tmp_path)
    result = json.loads(ran.stdout)
    assert ran.returncode == 0 and result["data"]["written"] is True
    assert result["data"]["preflight"] == "skipped"
    (submit,) = result["next"]
    assert submit.startswith("bash ") and Path(submit.split()[1]).is_file()


def test_a_dry_run_writes_where_it_is_told_to(spec: Callable[..., Path], tmp_path: Path) -> None:
    words = [sys.executable, LAUNCH, "train", "--engine", "cosmos-rl", "--spec", spec(), "--json", "--dry-run"]
    words.append("--skip-preflight")
    ran = run_here([*map(str, words), "--out", str(tmp_path / "look")], cwd=tmp_path)
    result = json.loads(ran.stdout)
    assert {path.name: path.read_text() for path in (tmp_path / "look").iterdir()} == result["data"]["files"]
    assert not (tmp_path / "out").exists()
    (submit,) = result["next"]
    subprocess.run(["bash", "-c", submit.replace("&& bash ", "&& bash -n ")], check=True)
    assert sorted(path.name for path in Path(result["data"]["folder"]).iterdir()) == ["cosmos.toml", "run.sh"]
