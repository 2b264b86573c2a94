"""Names that a shell, SLURM, a container's tool or a kubelet could read as more than names reach the engine as they
are, on every platform; what divides lines is refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml

from tests.platforms.slurm_cluster import SlurmCluster
from vidqa.core.problem import ProblemError
from vidqa.jobs import cosmos_container
from vidqa.jobs.platforms import docker as docker_platform
from vidqa.jobs.platforms import local, slurm, slurm_script
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.docker import DockerSite
from vidqa.jobs.platforms.kubernetes import platform as kubernetes
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite
from vidqa.jobs.platforms.slurm_script import SlurmSite
from vidqa.jobs.resources import Resources
from vidqa.spec import resolve
from vidqa.spec.layers import Layer

HOSTILE = (
    "a $SLURM_NODEID$(touch pwned)",
    "$FIRST_NODE`touch pwned`",
    "$MEETING_PORT\"; touch pwned; \"",
    "'; touch pwned; '",
    "$(HF_TOKEN) $$(HF_TOKEN) $",
    "EOF",
    "back\\slash\\",
    "50%j %% {run} {{}}",
    "-n &|<>*?[a]~#!é",
)  # fmt: skip
NODE = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "1", "SLURMD_NODENAME": "n1", "HF_TOKEN": "hf_planted"}


def a_job(folder: Path, name: str, settings: Any, **changes: Any) -> Job:
    """Whose output and data folders are called so; the run folder is there, the working folder too."""
    run = folder / name / "runs" / "20260101T120000Z-1a2b3c"
    run.mkdir(parents=True)
    places = {"reads": (folder / name / "data",), "writes": (folder / name / "runs",)}
    fields = {"processes": 4, "gpus": 2, "nodes": 2, **places, "settings": settings, **changes}
    return Job("20260101T120000Z-1a2b3c", "train", run, **fields)


def engine_words(job: Job) -> list[str]:
    """What must stand in the engine's command, byte for byte."""
    return ["vidqa.engine", "train", "--spec", str(job.run_dir / "spec.toml"), "--run-dir", str(job.run_dir)]


def written_down(path: Path, said: Path) -> None:
    """A program that writes its name and its words down, a NUL behind each."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/bash\nprintf "%s\\0" {path.name} "$@" >> {shlex.quote(str(said))}\n')
    path.chmod(0o755)


def ran(script: Path, folder: Path, *programs: str) -> list[str]:
    """Every word that these programs were given by a script. Nothing else is done by it."""
    said = folder / "said"
    for name in programs:
        written_down(folder / "tools" / name, said)
    done = subprocess.run(
        ["bash", str(script)],
        cwd=folder,
        env={**NODE, "PATH": f"{folder / 'tools'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == "" and not list(folder.rglob("pwned")), done
    return said.read_text().split("\0")[:-1]


@pytest.fixture
def name() -> str:
    """All of them in one path."""
    return "/".join(HOSTILE)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_of_slurm_starts_the_engine_with_these_very_words(tmp_path: Path, name: str, nodes: int) -> None:
    written_down(tmp_path / "tools" / "python", tmp_path / "said")
    python = str(tmp_path / "tools" / "python")
    job = a_job(tmp_path, name, SlurmSite(python=python), nodes=nodes)
    node = job.run_dir / "node.sh"
    node.write_text(slurm_script.task(job))
    words = ran(node, tmp_path)
    assert words[words.index("vidqa.engine") :] == [*engine_words(job), "--go-on"]
    assert ("--node-rank=1" in words) == (nodes == 2)
    assert words[words.index("-") - 1] == job.job_id + (".1" if nodes == 2 else "")


@pytest.mark.parametrize("backend", ["venv", "apptainer", "pyxis"])
def test_a_script_of_slurm_gives_srun_these_very_words(tmp_path: Path, name: str, backend: str) -> None:
    image = str(tmp_path / name / "e.sif")
    job = a_job(tmp_path, name, SlurmSite(backend=backend, image=image))
    script = tmp_path / "job.sbatch"
    script.write_text(slurm_script.sbatch(job))
    words = ran(script, tmp_path, "srun", "scontrol", "timeout", "sleep")
    node = str(job.run_dir / "node.sh")
    words = words[words.index("srun") : words.index(node) + 1]
    runs, data, run = tmp_path / name / "runs", tmp_path / name / "data", job.run_dir
    seen = f"{run}:{run},{data}:{data}:ro,{runs}:{runs}"
    shown = {
        "venv": [],
        "apptainer": ["apptainer", "exec", "--nv", "--bind", seen, image],
        "pyxis": [f"--container-image={image}", "--no-container-mount-home", f"--container-mounts={seen}"],
    }  # fmt: skip
    assert words == ["srun", "--export=ALL", "--kill-on-bad-exit=1", *shown[backend], "bash", node]


@pytest.mark.slurm
def test_slurm_itself_writes_the_log_where_it_belongs(slurm: SlurmCluster, tmp_path: Path) -> None:
    names = ["/".join(HOSTILE), *HOSTILE]
    jobs = [a_job(tmp_path, name, SlurmSite(), nodes=1, processes=1, gpus=0) for name in names]
    for job in jobs:
        script = job.run_dir / "job.sbatch"
        head = [line for line in slurm_script.sbatch(job).splitlines() if line.startswith("#")]
        script.write_text("\n".join([*head, "echo said"]))
        slurm.ask("sbatch", str(script))
    deadline = time.monotonic() + 300
    while slurm.ask("squeue", "-h") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [job.log.exists() and job.log.read_text() for job in jobs] == ["said\n"] * len(jobs)


@pytest.mark.parametrize("form", ["job", "trainjob"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_kubelet_hands_over_these_very_words(tmp_path: Path, name: str, nodes: int, form: str) -> None:
    settings = KubernetesSite.model_validate({"form": form, "image": "e"})
    job = a_job(tmp_path, name, settings, nodes=nodes)
    *_, made = yaml.safe_load_all(kubernetes.render(job).files["manifest.yaml"])
    trainer = made["spec"]["trainer"] if form == "trainjob" else made["spec"]["template"]["spec"]["containers"][0]
    words = [as_kubelet(word) for word in trainer["command"]]
    given = ["/etc/vidqa/spec.toml" if word == str(job.spec) else word for word in engine_words(job)]
    assert words[words.index("vidqa.engine") :] == [*given, "--go-on"]
    assert words[words.index("--run-dir") + 1] == str(job.run_dir)
    assert words[words.index("--node") + 1] == ("1" if nodes == 2 or form == "trainjob" else "0")


def test_a_kubelet_hands_over_these_very_settings(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDQA_CACHE_DIR", str(tmp_path / name))
    settings = KubernetesSite.model_validate({"volumes": [{"mount_path": str(tmp_path), "claim": "data"}]})
    *_, made = yaml.safe_load_all(kubernetes.render(a_job(tmp_path, name, settings)).files["manifest.yaml"])
    env = made["spec"]["template"]["spec"]["containers"][0]["env"]
    shown = {each["name"]: as_kubelet(each["value"]) for each in env if "value" in each}
    assert shown["VIDQA_CACHE_DIR"] == str(tmp_path / name)


def as_kubelet(word: str) -> str:
    """$(NAME) is filled in where the name is known, $$ is one sign, all else stays."""
    known = {"HF_TOKEN": "hf_planted", "JOB_COMPLETION_INDEX": "1", "PET_NODE_RANK": "1"}
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), word)


def test_docker_and_this_machine_take_any_name(tmp_path: Path, name: str) -> None:
    here = a_job(tmp_path, name, None, nodes=1)
    words = list(local.render(here).command)
    assert words[words.index("vidqa.engine") :] == engine_words(here)
    shown = local.render(here).shown.replace(sys.executable, "printf '%s\\0'", 1)
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split("\0")[:-1] == words[1:] and not list(tmp_path.rglob("pwned"))
    body = json.loads(docker_platform.render(replace(here, settings=DockerSite(), image="e")).files["container.json"])
    assert body["Cmd"][body["Cmd"].index("vidqa.engine") :] == engine_words(here)
    sources = [mount["Source"] for mount in body["HostConfig"]["Mounts"]]
    assert {str(tmp_path / name / "data"), str(tmp_path / name / "runs")} <= set(sources)


def test_no_platform_lets_the_engine_import_from_its_working_folder(tmp_path: Path) -> None:
    name = ("PYTHONSAFEPATH", "1")
    assert name in local.render(a_job(tmp_path, "a", None, nodes=1)).environment.items()
    body = docker_platform.render(a_job(tmp_path, "b", DockerSite(), nodes=1, image="e")).files["container.json"]
    assert "=".join(name) in json.loads(body)["Env"]
    assert f"export {'='.join(name)}" in slurm_script.task(a_job(tmp_path, "c", SlurmSite())).splitlines()
    for form in ("job", "trainjob"):
        settings = KubernetesSite.model_validate({"form": form, "image": "e"})
        *_, made = yaml.safe_load_all(kubernetes.render(a_job(tmp_path, form, settings)).files["manifest.yaml"])
        pod = made["spec"]["trainer"] if form == "trainjob" else made["spec"]["template"]["spec"]["containers"][0]
        assert dict(zip(("name", "value"), name, strict=True)) in pod["env"]


@pytest.fixture
def cosmos_spec(tmp_path: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        turns = [{"from": "human", "value": "<video>Is it?"}, {"from": "gpt", "value": "yes"}]
        rows = [{"id": str(number), "video": "a.mp4", "conversations": turns} for number in range(8)]
        (folder / "annotations.json").write_text(json.dumps(rows))
        data = {"annotation_path": str(folder / "annotations.json"), "media_path": str(folder)}
        table = {
            "policy": {"model_name_or_path": str(folder / "model")},
            "custom": {"train_dataset": data, "vision": {"nframes": 8}},
            "train": {"output_dir": str(folder / "out"), "epoch": 2},
        }
        (tmp_path / "spec.toml").write_text(tomli_w.dumps(table))
        return tmp_path / "spec.toml"

    return write


@pytest.mark.parametrize("platform", ["local", "docker", "venv", "apptainer", "pyxis", "kubernetes"])
def test_nvidias_container_gets_these_very_words(
    tmp_path: Path, name: str, platform: str, cosmos_spec: Callable[[str], Path]
) -> None:
    table = {"backend": platform} if platform in ("venv", "apptainer", "pyxis") else {}
    of = "slurm" if table else platform
    table = {"volumes": [{"mount_path": str(tmp_path), "claim": "data"}]} if of == "kubernetes" else table
    (tmp_path / "site.toml").write_text(tomli_w.dumps({of: table} if table else {}))
    wanted = Resources(image=None if platform == "venv" else "cosmos", site=tmp_path / "site.toml")
    made = cosmos_container.prepare("train", cosmos_spec(name), of, wanted, write=True)
    toml = str(made.folder / "cosmos.toml")
    if of == "kubernetes":
        *_, manifest = yaml.safe_load_all(made.files["manifest.yaml"])
        words = [as_kubelet(word) for word in manifest["spec"]["template"]["spec"]["containers"][0]["command"]]
        assert words[-2] == "/etc/vidqa/cosmos.toml" and words[2] == cosmos_container.BESIDE[2]
        return
    (script,) = [made.folder / file for file in made.files if file != "cosmos.toml"]
    words = ran(script, tmp_path, "srun", "docker", "cosmos-rl")
    assert words[-4:] == ["cosmos-rl", "--config", toml, cosmos_container.PROGRAM]
    media, out = tmp_path / name, tmp_path / name / "out"
    if platform == "docker":
        assert {f"--volume={media}:{media}:ro", f"--volume={out}:{out}"} <= set(words)
    if platform in ("pyxis", "apptainer"):
        (mounts,) = [word for word in words if f"{media}:{media}:ro,{out}:{out}" in word]
        assert platform == "apptainer" or mounts.startswith("--container-mounts=")
        assert platform == "pyxis" or words[words.index(mounts) - 1] == "--bind"


@pytest.mark.parametrize("odd", ["a\nEOF\ntouch pwned", "a\rb", "a\x1b[2J", "a\x7fb", "a\x85b"])
def test_control_characters_are_refused(tmp_path: Path, odd: str) -> None:
    for action, key in (("train", "train.output_dir"), ("train", "custom.train_dataset.media_path"),
                        ("evaluate", "results_dir"), ("evaluate", "model.model_name")):  # fmt: skip
        with pytest.raises(ProblemError) as refused:
            resolve(action, [Layer("spec.toml", {key: odd})])
        (problem,) = [problem for problem in refused.value.problems if key in problem.where]
        assert problem.code == "SPEC_VALUE" and not set("\n\r\x1b\x7f\x85") & set(problem.message)
    for changes in ({"run_dir": Path(f"/{odd}")}, {"reads": (Path(f"/{odd}"),)}, {"writes": (Path(f"/{odd}"),)}):
        with pytest.raises(ProblemError, match="PLATFORM_PATH"):
            replace(Job("x", "train", Path("/run"), 1, 0), **changes)


def test_a_prompt_may_have_lines() -> None:
    with pytest.raises(ProblemError) as refused:
        resolve("train", [Layer("spec.toml", {"custom.system_prompt": "one\ntwo"})])
    assert not [problem for problem in refused.value.problems if "system_prompt" in problem.where]


def test_a_container_is_not_told_of_a_path_that_it_would_divide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cosmos_spec: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no SLURM is asked
    for name in ("a^b", "a:b", "a,b", "blank "):
        job = a_job(tmp_path, name, SlurmSite(backend="apptainer", image="e.sif"), reads=(tmp_path / name,))
        assert [p.where for p in slurm.check(job) if p.code == "PLATFORM_PATH"]
    for platform, code in (("slurm", "PLATFORM_PATH"), ("docker", "SPEC_NOT_SUPPORTED")):
        (tmp_path / "site.toml").write_text('[slurm]\nbackend = "pyxis"\n' if platform == "slurm" else "")
        wanted = Resources(image=None if platform == "venv" else "cosmos", site=tmp_path / "site.toml")
        with pytest.raises(ProblemError) as refused:
            cosmos_container.prepare("train", cosmos_spec(f"{platform}:b"), platform, wanted, write=False)
        assert {problem.code for problem in refused.value.problems if problem.severity == "error"} == {code}
