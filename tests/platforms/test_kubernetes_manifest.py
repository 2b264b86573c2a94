"""The objects that a cluster gets: valid for every version whose schemas are published, and what they must say."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes.client import ApiClient

from vidqa.core.problem import ProblemError
from vidqa.jobs.platforms import site
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.kubernetes.manifest import manifest, objects
from vidqa.jobs.platforms.kubernetes.platform import check
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite, path_problems, resource_problems

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
    assert container(made)["resources"]["limits"] == {"nvidia.com/gpu": "4", "memory": "200Gi"}
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


RDMA: dict[str, Any] = {
    "host_network": True,
    "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"},
    "resources": {"rdma/rdma_shared_device_a": 2},
    "capabilities": ["IPC_LOCK"],
    "environment": {"NCCL_IB_HCA": "=mlx5_0", "NCCL_SOCKET_IFNAME": "=eth0"},
    "interface": "net1",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_rdma_variables_and_the_nodes_network(version: str) -> None:
    _, service, made = objects(job(nodes=2, **RDMA))
    for each in (service, made):
        kubernetes_validate.validate(each, version, strict=True)
    template = made["spec"]["template"]
    assert template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma-net"
    assert (template["spec"]["hostNetwork"], template["spec"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert container(made)["resources"]["limits"]["rdma/rdma_shared_device_a"] == "2"
    assert container(made)["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"add": ["IPC_LOCK"]}
    }  # fmt: skip
    values = {each["name"]: each.get("value") for each in container(made)["env"]}
    assert (values["NCCL_IB_HCA"], values["GLOO_SOCKET_IFNAME"]) == ("=mlx5_0", "net1")
    assert values["NCCL_SOCKET_IFNAME"] == "=eth0", "the place knows better than its interface"


def test_jobs_on_one_nodes_network_meet_at_ports_of_their_own() -> None:
    def meets(job_id: str, **settings: Any) -> tuple[int, int]:
        _, service, made = objects(replace(job(nodes=2, **settings), job_id=job_id))
        (port,) = [word.partition("=")[2] for word in container(made)["command"] if word.startswith("--master-port=")]
        return int(port), service["spec"]["ports"][0]["port"]

    first, second = meets("20260101T120000Z-1a2b3c", **RDMA), meets("20260101T120001Z-1a2b3c", **RDMA)
    assert first != second and meets("20260101T120000Z-1a2b3c") == meets("20260101T120001Z-1a2b3c") == (29500, 29500)
    for own, served in (first, second):
        assert own == served and 20_000 <= own < 30_000  # below what nodes hand out, and services of type NodePort


@pytest.mark.parametrize("nodes", [1, 2, 100])
def test_names_of_hosts_fit(nodes: int) -> None:
    """Pods of an Indexed Job are called JOB-INDEX, a label of DNS; the first one's name is what the others look for."""
    *_, made = objects(job(nodes=nodes))
    name, label = made["metadata"]["name"], re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
    assert label.fullmatch(name) and label.fullmatch(f"{name}-{nodes - 1}")
    words = container(made)["command"]
    hosts = {word.partition("=")[2] for word in words if word.startswith("--master-addr=")}
    assert hosts == ({f"{name}-0.{name}"} if nodes > 1 else set())


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("settings", [FULL, RDMA])
def test_the_official_client_reads_all_of_it(nodes: int, settings: dict[str, Any]) -> None:
    """Its models check what they are given, and hold every key that we wrote."""

    client = ApiClient()
    for made in objects(job(nodes, **settings)):
        read = client.deserialize(json.dumps(made), f"V1{made['kind']}", "application/json")
        assert client.sanitize_for_serialization(read) == made


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


def test_a_secret_that_the_spec_needs_is_no_choice() -> None:
    def needed(**settings: Any) -> set[str]:
        asked = replace(job(**settings), needs=("WANDB_API_KEY", "AWS_ACCESS_KEY_ID"))
        keys = [
            each["valueFrom"]["secretKeyRef"] for each in container(objects(asked)[-1])["env"] if "value" not in each
        ]
        return {key["key"] for key in keys if not key["optional"]}

    assert needed(service_account="") == {"WANDB_API_KEY", "AWS_ACCESS_KEY_ID"}
    assert needed(service_account="writer") == {"WANDB_API_KEY"}, "its role may stand for the keys"


def test_failures_and_disruptions() -> None:
    disrupted, saved, final = objects(job(nodes=2))[-1]["spec"]["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore" and disrupted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert saved["action"] == "Count" and saved["onExitCodes"]["values"] == [6]
    assert final["action"] == "FailJob" and final["onExitCodes"]["operator"] == "NotIn"
    assert not {3, 4, 5, 137} & set(final["onExitCodes"]["values"])


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("more", [{}, {**RDMA, "host_network": False}])
def test_a_train_job_of_kubeflow(nodes: int, more: dict[str, Any]) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    _, made = objects(job(nodes, form="trainjob", **more))
    read = models.TrainerV1alpha1TrainJob.from_dict(made)
    assert read.to_dict() == made  # nothing that the published types do not know, nothing of another type
    trainer = made["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (nodes, 4)
    assert "--node" in trainer["command"] and "$(PET_NODE_RANK)" in trainer["command"]
    assert not [word for word in trainer["command"] if word.startswith(("--nnodes", "--standalone"))]


def test_paths_must_lie_in_volumes() -> None:
    def codes(of: Job) -> Iterator[str]:
        return (p.where for p in check(of) if p.code == "PLATFORM_PATH_UNSEEN")

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
        ({"form": "trainjob", "host_network": True}, "runtime"),
        ({"environment": {"HF_TOKEN": "planted"}}, "put it into the Secret"),
        ({"environment": {"A": "hf_planted0123456789planted"}}, "put it into the Secret"),
        ({"capabilities": ["ipc lock"]}, "match"),
        ({"resources": {"rdma/a": 0}}, "greater"),
    ],
)
def test_settings_that_are_wrong(table: dict[str, Any], shown: str) -> None:
    with pytest.raises(ProblemError) as raised:
        site.validate(KubernetesSite, table, "site.toml [kubernetes]")
    assert shown in str(raised.value) and "planted" not in str(raised.value)


def test_an_output_folder_that_no_volume_holds_is_named_without_the_run_in_it() -> None:
    paths = [problem.where for problem in path_problems(job(volumes=FULL["volumes"][:1]))]
    assert paths == ["/outputs", "/scratch/cache"]


def test_resources_do_not_override_the_settings_of_their_own() -> None:
    taken = {"nvidia.com/gpu": 3, "memory": 7, "rdma/rdma_shared_device_a": 1}
    problems = resource_problems(job(resources=taken))
    assert [(problem.code, problem.message.split()[0]) for problem in problems] == [
        ("PLATFORM_SITE_SETTINGS", "nvidia.com/gpu"),
        ("PLATFORM_SITE_SETTINGS", "memory"),
    ]
    assert resource_problems(job(resources={"rdma/rdma_shared_device_a": 1})) == []
