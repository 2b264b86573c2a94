"""The objects that a cluster gets: valid for every version whose schemas are published, and what they must say."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from vidqa.platforms import site
from vidqa.platforms._base import Job
from vidqa.platforms.kubernetes import check
from vidqa.platforms.kubernetes_manifest import manifest, objects
from vidqa.platforms.kubernetes_site import KubernetesSite
from vidqa.problem import ProblemError

VERSIONS = ("1.29", "1.31", "1.34", "1.37")
FULL: dict[str, Any] = {
    "namespace": "training",
    "image": "registry/engine:1",
    "image_pull_secret": "registry-key",
    "secret": "tokens",
    "service_account": "trainer",
    "node_selector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
    "tolerations": [
        {"key": "nvidia.com/gpu"},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
    ],
    "volumes": [
        {"mount_path": "/data", "claim": "data", "sub_path": "videos", "read_only": True},
        {"mount_path": "/outputs", "claim": "outputs"},
        {"mount_path": "/scratch", "host_path": "/mnt/nvme"},
    ],
    "queue": "team-a",
    "cpus": 16,
    "memory_gib": 200,
    "shm_gib": 64,
    "run_as_user": 1000,
}  # fmt: skip


def job(nodes: int = 1, gpus: int = 4, **settings: Any) -> Job:
    return Job(
        job_id="20260101T120000Z-1a2b3c",
        action="train",
        run_dir=Path("/outputs/20260101T120000Z-1a2b3c"),
        processes=nodes * max(gpus, 1),
        gpus=gpus,
        nodes=nodes,
        image="registry/engine@sha256:" + "0" * 64,
        reads=(Path("/data/annotations.json"),),
        writes=(Path("/outputs"), Path("/scratch/cache")),
        settings=KubernetesSite.model_validate({**FULL, **settings}),
        spec_toml='[policy]\nmodel_name_or_path = "/data/model"\n',
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("settings", [FULL, {name: KubernetesSite().model_dump()[name] for name in FULL}])
def test_every_object_is_valid(version: str, nodes: int, settings: dict[str, Any]) -> None:
    for made in yaml.safe_load_all(manifest(job(nodes, **settings))):
        kubernetes_validate.validate(made, version, strict=True)


def test_the_validation_would_notice() -> None:
    made = copy.deepcopy(objects(job())[-1])
    made["spec"]["template"]["spec"]["tollerations"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, VERSIONS[0], strict=True)


def container(made: dict[str, Any]) -> dict[str, Any]:
    return made["spec"]["template"]["spec"]["containers"][0]


def test_one_node() -> None:
    config, made = objects(job())
    assert (config["kind"], made["kind"]) == ("ConfigMap", "Job")
    assert config["data"]["spec.toml"].startswith("[policy]")
    assert "completionMode" not in made["spec"] and made["spec"]["suspend"] is True
    words = container(made)["command"]
    assert words[words.index("--") + 1 :][:5] == [
        "python", "-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node=4"
    ]  # fmt: skip
    assert container(made)["resources"]["limits"] == {"nvidia.com/gpu": 4, "memory": "200Gi"}
    assert "resources" in container(objects(job(gpus=0))[-1])
    assert "nvidia.com/gpu" not in container(objects(job(gpus=0))[-1])["resources"]["limits"]


def test_several_nodes_meet_at_the_first() -> None:
    _, service, made = objects(job(nodes=2))
    name = made["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["metadata"]["name"] == name == made["spec"]["template"]["spec"]["subdomain"]
    assert service["spec"]["selector"].items() <= made["spec"]["template"]["metadata"]["labels"].items()
    spec = made["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    words = container(made)["command"]
    for word in (
        "--nnodes=2",
        "--nproc-per-node=4",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        f"--master-addr={name}-0.{name}",
    ):
        assert word in words  # fmt: skip


def test_shared_memory_volumes_and_placement() -> None:
    pod = objects(job())[-1]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    data = mounts["/data"]
    assert volumes[data["name"]]["persistentVolumeClaim"] == {"claimName": "data"}
    assert (data["subPath"], data["readOnly"]) == ("videos", True)
    assert volumes[mounts["/scratch"]["name"]]["hostPath"]["path"] == "/mnt/nvme"
    assert pod["tolerations"][0] == {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert pod["imagePullSecrets"] == [{"name": "registry-key"}]
    assert pod["securityContext"] == {"runAsUser": 1000, "runAsNonRoot": True}
    assert pod["terminationGracePeriodSeconds"] == 600 and pod["restartPolicy"] == "Never"


def test_the_cache_is_the_launchers_where_a_volume_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def cache(made: dict[str, Any]) -> tuple[str, list[str]]:
        pod = container(made)
        value = next(each["value"] for each in pod["env"] if each["name"] == "VIDQA_CACHE_DIR")
        return value, [mount["mountPath"] for mount in pod["volumeMounts"] if value.startswith(mount["mountPath"])]

    assert cache(objects(job())[-1]) == ("/var/cache/vidqa", ["/var/cache/vidqa"])
    monkeypatch.setenv("VIDQA_CACHE_DIR", "/scratch/cache")
    assert cache(objects(job())[-1]) == ("/scratch/cache", ["/scratch"])


def test_secrets_are_references_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    text = manifest(job())
    assert "planted" not in text
    entry = next(each for each in container(objects(job())[-1])["env"] if each["name"] == "HF_TOKEN")
    assert entry == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "HF_TOKEN", "optional": True}},
    }


def test_failures_and_disruptions() -> None:
    disrupted, saved, final = objects(job(nodes=2))[-1]["spec"]["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore" and disrupted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert saved["action"] == "Count" and saved["onExitCodes"]["values"] == [6]
    assert final["action"] == "FailJob" and final["onExitCodes"]["operator"] == "NotIn"
    assert not {3, 4, 5, 137} & set(final["onExitCodes"]["values"])


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_train_job_of_kubeflow(nodes: int) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    _, made = objects(job(nodes, form="trainjob"))
    read = models.TrainerV1alpha1TrainJob.from_dict(made)
    assert read.to_dict() == made  # nothing that the published types do not know, nothing of another type
    trainer = made["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (nodes, 4)
    assert "--node" in trainer["command"] and "$(PET_NODE_RANK)" in trainer["command"]
    assert not [word for word in trainer["command"] if word.startswith(("--nnodes", "--standalone"))]


def test_paths_must_lie_in_volumes() -> None:
    def codes(of: Job) -> Iterator[str]:
        return (p.where for p in check(of) if p.code == "PLATFORM_KUBERNETES_NOT_MOUNTED")

    assert list(codes(job())) == []
    far = replace(job(), reads=(Path("/home/me/a.json"),), writes=(Path("/data/out"),))
    assert list(codes(far)) == ["/home/me/a.json", "/data/out"]


@pytest.mark.parametrize(
    ("table", "shown"),
    [
        ({"name_space": "x"}, "near it: namespace"),
        ({"volumes": [{"mount_path": "/a"}]}, "claim or host_path"),
        ({"volumes": [{"mount_path": "/a", "claim": "x", "host_path": "/b"}]}, "exactly one"),
        ({"volumes": [{"mount_path": "/a", "claim": "x"}, {"mount_path": "/a", "claim": "y"}]}, "mounted twice: /a"),
        ({"tolerations": [{"key": "a", "value": "b"}]}, "needs operator"),
        ({"shm_gib": "16"}, "integer"),
        ({"namespace": "Not A Name"}, "match"),
        ({"form": "pod"}, "trainjob"),
    ],
)
def test_settings_that_are_wrong(table: dict[str, Any], shown: str) -> None:
    with pytest.raises(ProblemError) as raised:
        site.validate(KubernetesSite, table, "site.toml [kubernetes]")
    assert shown in str(raised.value)
