"""Where pods see the launcher's files: models of the hub, volumes at other paths, and dry runs that one submits."""

# ruff: noqa: F811  (fixtures of another module)
from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml
from kubernetes import config, utils
from programs import run_here

from tests.hub_server import COMMIT, serving
from tests.platforms.kubernetes_api import Cluster, until
from tests.platforms.test_kubernetes_jobs import api, started, wanted  # noqa: F401  (fixtures)
from tests.platforms.test_kubernetes_manifest import container, job
from vidqa.core.problem import Exit
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import DryRun, dry_run, retry
from vidqa.jobs.platforms import docker as docker_platform
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.kubernetes.manifest import objects
from vidqa.jobs.platforms.kubernetes.site import path_problems
from vidqa.jobs.resources import Resources

WriteSpec = Callable[..., Path]
LAUNCH = Path(__file__).resolve().parents[2] / "scripts" / "launch.py"
NAME = "hf_model://org/tiny"
# A laptop that sees the cluster's two volumes below /home/me, where it may have mounted or copied them.
ELSEWHERE: dict[str, Any] = {
    "volumes": [
        {"mount_path": "/data", "launcher_path": "/home/me/data", "claim": "data", "read_only": True},
        {"mount_path": "/outputs", "launcher_path": "/home/me/outputs", "claim": "outputs"},
    ]
}


def far_job(**changes: Any) -> Any:
    spec = {"policy": {"model_name_or_path": "/home/me/data/model"}, "train": {"output_dir": "/home/me/outputs"}}
    usual = {
        "run_dir": Path("/home/me/outputs/20260101T120000Z-1a2b3c"),
        "reads": (Path("/home/me/data/annotations.json"), Path("/home/me/data/model")),
        "writes": (Path("/home/me/outputs"),),
        "spec_toml": tomli_w.dumps(spec),
    }
    return replace(job(**ELSEWHERE), **{**usual, **changes})


def test_pods_see_the_launchers_files_at_the_paths_of_their_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDQA_CACHE_DIR", "/home/me/outputs/cache")
    given, made = objects(far_job())
    assert "/home/me" not in json.dumps([given, made])
    assert tomllib.loads(given["data"]["spec.toml"]) == {
        "policy": {"model_name_or_path": "/data/model"}, "train": {"output_dir": "/outputs"}
    }  # fmt: skip
    words = container(made)["command"]
    assert words[words.index("--spec") + 1] == "/etc/vidqa/spec.toml"
    run = "/outputs/20260101T120000Z-1a2b3c"
    assert [words[place + 1] for place, word in enumerate(words) if word == "--run-dir"] == [run, run]
    assert {"name": "VIDQA_CACHE_DIR", "value": "/outputs/cache"} in container(made)["env"]
    assert path_problems(far_job()) == []


def test_what_pods_would_not_find_is_named(tmp_path: Path) -> None:
    def said(**changes: Any) -> list[tuple[str, str]]:
        return [(problem.where, problem.message) for problem in path_problems(far_job(**changes))]

    assert said(reads=(Path("/data/annotations.json"),)) == [
        ("/data/annotations.json", "no volume contains it; they contain: /home/me/data, /home/me/outputs")
    ]
    ((where, message),) = said(writes=(Path("/home/me/data/out"),))
    assert where == "/home/me/data/out" and "mounted read-only" in message
    ((where, message),) = said(named=(Path("/home/me/data/videos"),))
    assert "absolute paths" in message and "/data/videos" in message
    covered = [*ELSEWHERE["volumes"], {"mount_path": "/data/videos", "claim": "videos"}]
    ((_, message),) = [
        (p.where, p.message)
        for p in path_problems(replace(job(volumes=covered), reads=(Path("/home/me/data/videos/a.mp4"),), writes=(),
                                       run_dir=Path("/home/me/outputs/run")))
    ]  # fmt: skip
    assert "hidden by the volume at /data/videos" in message
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").symlink_to("/elsewhere/weights")
    volumes = [{"mount_path": str(tmp_path), "claim": "data"}]
    linked = replace(job(volumes=volumes), reads=(tmp_path / "model",), writes=(), run_dir=tmp_path / "run")
    assert [(problem.where, problem.severity) for problem in path_problems(linked)] == [("/elsewhere", "warning")]


def test_media_that_are_named_by_absolute_paths_are_noticed_where_paths_differ(
    tmp_path: Path, write_spec: WriteSpec
) -> None:
    spec = write_spec("complete")
    turns = [{"from": "human", "value": "<video>?"}, {"from": "gpt", "value": "yes"}]
    (tmp_path / "a.mp4").touch()
    rows = [{"id": "1", "video": str(tmp_path / "a.mp4"), "conversations": turns}]
    (tmp_path / "annotations.json").write_text(json.dumps(rows))

    def found(**volume: str) -> list[str]:
        site = {"kubernetes": {"image": "e", "volumes": [{"mount_path": str(tmp_path), "claim": "data", **volume}]}}
        (tmp_path / "site.toml").write_text(tomli_w.dumps(site))
        made = dry_run("train", spec, "kubernetes", Resources(gpus=0, site=tmp_path / "site.toml"))
        return [problem.message for problem in made.problems if problem.code == "PLATFORM_PATH_UNSEEN"]

    assert found() == []
    (message,) = found(mount_path="/data", launcher_path=str(tmp_path))
    assert "absolute paths" in message


def test_data_that_pods_alone_see_are_declared(tmp_path: Path, write_spec: WriteSpec) -> None:
    spec, far = write_spec("complete"), "/nowhere/here"
    text = spec.read_text().replace(str(tmp_path / "annotations.json"), f"{far}/annotations.json")
    spec.write_text(text.replace(str(tmp_path / "model"), f"{far}/model"))
    volumes = [{"mount_path": path, "claim": "data"} for path in (far, str(tmp_path))]
    asked = {"image": "e", "volumes": volumes, "cluster_paths": [far]}
    (tmp_path / "site.toml").write_text(tomli_w.dumps({"kubernetes": asked}))
    made = dry_run("train", spec, "kubernetes", Resources(gpus=0, site=tmp_path / "site.toml"))
    (warned,) = [problem for problem in made.problems if problem.code == "PLATFORM_NOT_SEEN"]
    assert f"{far}/model" in warned.message and warned.severity == "warning"
    assert f"{far}/annotations.json" in made.rendered.files["manifest.yaml"]


def test_a_job_whose_pods_have_other_paths_is_retried(
    api: Cluster,
    wanted: Callable[..., Resources],
    write_spec: WriteSpec,
    tmp_path: Path,
) -> None:
    (tmp_path / "there").symlink_to(tmp_path)  # the pods' name for the same folder
    volumes = [
        {"mount_path": str(tmp_path / "there"), "launcher_path": str(tmp_path), "claim": "data"},
        {"mount_path": "/", "host_path": "/"},
    ]
    first = started(write_spec("resumable"), wanted(volumes=volumes))
    run = Path(first.run_dir)
    until(lambda: "manner resumable" in jobs.tail(first, 5), "the engine in its pod")
    first = jobs.cancel(first.job_id, 30)
    assert (first.state, first.exit_code) == (State.CANCELED, Exit.NOT_DONE) and (run / "saved-by-rank-0").exists()
    (given,) = [thing for (kind, _), thing in api.objects.items() if kind == "configmaps"] or [None]
    assert str(tmp_path / "there") not in (run / "spec.toml").read_text(), "the launcher's own copy has its own paths"
    second = jobs.wait(retry(first).record, 60)
    assert (second.state, second.run_dir) == (State.COMPLETE, first.run_dir), jobs.tail(second, 20)
    (given,) = [thing for (kind, _), thing in api.objects.items() if kind == "configmaps"]
    assert f'output_dir = "{tmp_path / "there/runs"}"' in given["data"]["spec.toml"]


@pytest.fixture
def hub_spec(tmp_path: Path, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A spec of a hub's model, whose cache is in no folder that the spec names; no cluster can be asked."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "config.json").write_text("{}")
    (served / "model.safetensors").write_bytes(bytes(1000))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home/hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "home/hub"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    path = write_spec("complete")
    text = path.read_text()
    path.write_text(text.replace(f'"{tmp_path / "model"}"', f'"{NAME}"'))
    with serving(served) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield path


def place(tmp_path: Path, *volumes: dict[str, str]) -> Path:
    file = tmp_path / "site.toml"
    of_spec = [{"mount_path": "/work", "launcher_path": str(tmp_path), "claim": "work"}] if volumes else []
    file.write_text(tomli_w.dumps({"kubernetes": {"image": "e", "volumes": [*of_spec, *volumes]}}))
    return file


def errors(made: DryRun) -> list[tuple[str, str]]:
    return [(problem.code, problem.remedy) for problem in made.problems if problem.severity == "error"]


def test_the_cache_of_the_hub_is_a_volume_or_a_problem(hub_spec: Path, tmp_path: Path) -> None:
    cache = tmp_path / "home/hub"
    spec_alone = [
        {"mount_path": str(tmp_path / name), "claim": "data"} for name in ("model", "annotations.json", "runs")
    ]
    (tmp_path / "site.toml").write_text(tomli_w.dumps({"kubernetes": {"image": "e", "volumes": spec_alone}}))
    asked = ("train", hub_spec, "kubernetes")
    found = errors(dry_run(*asked, Resources(gpus=0, site=tmp_path / "site.toml")))
    assert len(found) >= 2 and {code for code, _ in found} == {"PLATFORM_PATH_UNSEEN"}
    assert [remedy for _, remedy in found if f"launcher_path = '{cache}'" in remedy]
    models = {"mount_path": "/models", "launcher_path": str(cache), "claim": "models", "read_only": True}
    made = dry_run(*asked, Resources(gpus=0, site=place(tmp_path, models)))
    assert errors(made) == []
    given, main = yaml.safe_load_all(made.rendered.files["manifest.yaml"])
    model = tomllib.loads(given["data"]["spec.toml"])["policy"]["model_name_or_path"]
    assert model == f"/models/models--org--tiny/snapshots/{COMMIT}"
    pod = main["spec"]["template"]["spec"]
    volume = next(each["name"] for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == "/models")
    claims = {each["name"]: each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each}
    assert claims[volume] == {"claimName": "models"}


def script(*words: object) -> tuple[int, dict[str, Any]]:
    asked = [sys.executable, str(LAUNCH), "train", *map(str, words), "--dry-run", "--skip-preflight", "--json"]
    ran = run_here(asked, cwd=Path.cwd())
    return ran.returncode, json.loads(ran.stdout)


def test_what_a_dry_run_writes_can_be_submitted_as_it_is(
    hub_spec: Path,
    api: Cluster,
    wanted: Callable[..., Resources],
    tmp_path: Path,
) -> None:
    site, look = wanted().site, tmp_path / "look"
    code, result = script("--spec", hub_spec, "--platform", "kubernetes", "--gpus", 0, "--image", "engine:1",
                          "--site", site, "--out", look)  # fmt: skip
    assert code == Exit.OK, result
    assert {path.name: path.read_text() for path in look.iterdir()} == {
        "manifest.yaml": result["data"]["files"]["manifest.yaml"], "spec.toml": result["data"]["spec_toml"]
    }  # fmt: skip
    fetch, submit = result["next"]
    assert " download org/tiny " in fetch and submit == f"kubectl apply -f {look / 'manifest.yaml'}"
    assert not (tmp_path / "home").exists() and not api.objects
    client = config.new_client_from_config(str(api.kubeconfig))
    made = utils.create_from_yaml(client, str(look / "manifest.yaml"))
    assert [each[0].kind for each in made] == ["ConfigMap", "Job"]
    run = Path(result["data"]["run_dir"])
    until(lambda: (run / "status.json").exists() and '"COMPLETE"' in (run / "status.json").read_text(), "the end")
    assert tomllib.loads((run / "spec.toml").read_text()) == tomllib.loads(result["data"]["spec_toml"])


def test_a_dry_run_needs_neither_cluster_nor_daemon(
    write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    site = tmp_path / "site.toml"
    site.write_text(tomli_w.dumps({"kubernetes": {"volumes": [{"mount_path": str(tmp_path), "claim": "data"}]}}))
    monkeypatch.setenv("PATH", str(tmp_path))  # without SLURM's commands
    words = ("--spec", write_spec("complete"), "--gpus", 0, "--image", "engine:1", "--out", tmp_path / "look")
    for name, file, away in (("kubernetes", "manifest.yaml", "PLATFORM_UNREACHABLE"),
                             ("docker", "container.json", "PLATFORM_UNREACHABLE"),
                             ("slurm", "job.sbatch", "PLATFORM_UNREACHABLE")):  # fmt: skip
        code, result = script(*words, "--platform", name, "--site", site)
        said = {problem["code"]: problem["severity"] for problem in result["problems"]}
        assert code == Exit.OK and said[away] == "warning", result["problems"]
        assert name == "slurm" or "engine:1" in (tmp_path / "look" / file).read_text()
    assert docker_platform.pin_image("engine:1", None, False) == "engine:1"
