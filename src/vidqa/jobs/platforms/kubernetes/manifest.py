"""The Kubernetes objects of one job, as `kubectl apply -f manifest.yaml` takes them.

A ConfigMap with the spec; for several nodes a headless Service, so that the nodes find the first one; and the Job (one
node: a plain one, several: an Indexed one) or the Kubeflow TrainJob. Pure functions, without a cluster.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Any

import yaml

from vidqa.core.problem import Exit
from vidqa.jobs.platforms._base import SECRETS, Job
from vidqa.jobs.platforms.engine_command import (
    GO_ON,
    RENDEZVOUS_PORT,
    TORCHRUN,
    Placeholder,
    engine_environment,
    engine_words,
    torchrun,
)
from vidqa.jobs.platforms.kubernetes.paths import cache_folder, in_pod, site_of
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite, Toleration, Volume

JOB_LABEL = "vidqa/job"
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CONTAINER = "engine"
TRAINJOB_CONTAINER = "node"  # its name in the torch runtimes of Kubeflow
GIVEN = "/etc/vidqa"  # where the ConfigMap is mounted
SPEC = "spec.toml"  # in it
LAST_WORDS = "/dev/termination-log"
SHM = "/dev/shm"
OWN_CACHE = "/var/cache/vidqa"


def manifest(job: Job) -> str:
    """The YAML documents of a job, in the order of applying."""
    return yaml.safe_dump_all(objects(job), sort_keys=False, width=120)


def objects(job: Job) -> list[dict[str, Any]]:
    """Each object with its apiVersion and kind; the Job or TrainJob is the last."""
    site, job = site_of(job), in_pod(job)
    manifests = [_config_map(job)]
    if site.form == "trainjob":
        return [*manifests, _train_job(job, site)]
    if job.nodes > 1:
        manifests.append(_service(job))
    return [*manifests, _job(job, site)]


def name_of(job_id: str) -> str:
    """The name of a job's objects, which must be a DNS label."""
    return "vidqa-" + re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")


def escaped_words(words: Iterable[str]) -> list[str]:
    """Words escaped for a manifest: the kubelet expands $(NAME), also of secrets, so the $ is doubled in all words that
    are not Placeholder."""
    return [str(word) if isinstance(word, Placeholder) else word.replace("$", "$$") for word in words]


def command(job: Job) -> tuple[str, ...]:
    """The command of a pod: the pod program, and after `--` the torchrun that it starts. The spec is the mounted one:
    that in the run folder may be the launcher's, with other paths."""
    return _words(in_pod(job), site_of(job))


def _words(job: Job, site: KubernetesSite) -> tuple[str, ...]:
    return tuple(f"{GIVEN}/{SPEC}" if word == str(job.spec) else word for word in _pod_command(job, site))


def _pod_command(job: Job, site: KubernetesSite) -> tuple[str, ...]:
    about = ("--job", job.job_id, "--run-dir", str(job.run_dir), "--given", GIVEN, "--last-words", LAST_WORDS)
    start = (site.python, "-m", "vidqa.jobs.platforms.kubernetes.pod", *about)
    if site.form == "trainjob":  # the runtime sets nodes, ranks and the rendezvous in PET_* variables
        return (
            *start,
            "--node",
            Placeholder("$(PET_NODE_RANK)"),
            "--",
            site.python,
            *TORCHRUN,
            *engine_words(job),
            GO_ON,
        )
    if job.nodes == 1:
        return (*start, "--node", "0", "--", *torchrun(site.python, job), GO_ON)
    first, index = f"{name_of(job.job_id)}-0.{name_of(job.job_id)}", Placeholder("$(JOB_COMPLETION_INDEX)")
    ranks = torchrun(site.python, job, f"{first}:{_port(job, site)}", index)  # rank 0, and its log, in the first pod
    return (*start, "--node", index, "--first-node", first, "--", *ranks, GO_ON)


def _port(job: Job, site: KubernetesSite) -> int:
    """The rendezvous port. On the host network several jobs may share a node, so each has its own port, below the
    ephemeral ports."""
    return 20_000 + zlib.crc32(job.job_id.encode()) % 10_000 if site.host_network else RENDEZVOUS_PORT


def _metadata(job: Job, **more: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "vidqa", JOB_LABEL: job.job_id, **more.pop("labels", {})}
    return {"name": name_of(job.job_id), "namespace": site_of(job).namespace, "labels": labels, **more}


def _config_map(job: Job) -> dict[str, Any]:
    data = {SPEC: job.spec_toml}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job), "data": data}


def _service(job: Job) -> dict[str, Any]:
    """A headless Service: it gives every pod a DNS name, also before the pod is ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {JOB_LABEL: job.job_id},
        "ports": [{"name": "rendezvous", "port": _port(job, site_of(job))}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job), "spec": spec}


def _job(job: Job, site: KubernetesSite) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "backoffLimit": site.restarts * job.nodes,
        "podFailurePolicy": {"rules": _failure_rules()},
        "podReplacementPolicy": "Failed",  # never two writers in one run folder
        "template": {
            "metadata": {
                "labels": {"app.kubernetes.io/name": "vidqa", JOB_LABEL: job.job_id},
                "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", **site.annotations},
            },
            "spec": _pod(job, site),
        },
    }
    if job.nodes > 1:
        spec = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes, **spec}
    if site.queue:
        spec["suspend"] = True  # Kueue starts it
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(job, labels=_queue(site)), "spec": spec}


def _queue(site: KubernetesSite) -> dict[str, str]:
    return {QUEUE_LABEL: site.queue} if site.queue else {}


def _failure_rules() -> list[dict[str, Any]]:
    """Disruptions are no failure; a run that saved itself is restarted a few times; other failures are final."""
    saved = [int(Exit.NOT_DONE)]
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": saved}},
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0, *saved]}},
    ]


def _pod(job: Job, site: KubernetesSite) -> dict[str, Any]:
    container = {
        "name": CONTAINER,
        "image": job.image or site.image,
        "command": escaped_words(_words(job, site)),
        "env": _environment(job, site),
        "resources": _resources(job, site),
        "securityContext": {"allowPrivilegeEscalation": False, **_capabilities(site)},
        "terminationMessagePath": LAST_WORDS,
        "volumeMounts": _mounts(site),
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": site.grace_s,
        "automountServiceAccountToken": False,  # the engine does not use the API
        "enableServiceLinks": False,
        **({"subdomain": name_of(job.job_id)} if job.nodes > 1 else {}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if site.host_network else {}),
        **_placement(site),
        "containers": [container],
        "volumes": _volumes(job, site),
    }


def _placement(site: KubernetesSite) -> dict[str, Any]:
    """Placement and user of pods; only keys that are set."""
    placement = {
        "serviceAccountName": site.service_account,
        "imagePullSecrets": [{"name": site.image_pull_secret}] if site.image_pull_secret else None,
        "nodeSelector": site.node_selector,
        "tolerations": [_toleration(taint) for taint in site.tolerations],
        "securityContext": None if site.run_as_user is None else _user(site.run_as_user),
    }
    return {name: value for name, value in placement.items() if value}


def _user(number: int) -> dict[str, Any]:
    return {"runAsUser": number, "runAsNonRoot": number != 0}


def _toleration(taint: Toleration) -> dict[str, Any]:
    return {name: value for name, value in taint.model_dump().items() if value}


def needed(job: Job) -> tuple[str, ...]:
    """The secrets that pods need. With a service account not those of S3: its role may replace them."""
    has_role = bool(site_of(job).service_account)
    return tuple(name for name in job.needs if not (has_role and name.startswith("AWS_")))


def _capabilities(site: KubernetesSite) -> dict[str, Any]:
    return {"capabilities": {"add": site.capabilities}} if site.capabilities else {}


def _environment(job: Job, site: KubernetesSite) -> list[dict[str, Any]]:
    """Plain settings, and secrets by reference: a pod does not start without a needed key."""
    cache = str(cache_folder(site) or OWN_CACHE)
    settings = {**engine_environment(job, site.cpus or None), "VIDQA_CACHE_DIR": cache, **site.environment}
    keys = [{"name": site.secret, "key": name, "optional": name not in needed(job)} for name in SECRETS]
    return [*plain(settings), *({"name": key["key"], "valueFrom": {"secretKeyRef": key}} for key in keys)]


def plain(settings: dict[str, str]) -> list[dict[str, Any]]:
    """Variables of a container with literal values."""
    values = zip(settings, escaped_words(settings.values()), strict=True)
    return [{"name": name, "value": value} for name, value in values]


def _resources(job: Job, site: KubernetesSite) -> dict[str, Any]:
    """Quantities are strings, as some clients require."""
    limits = {site.gpu_resource: str(job.gpus)} if job.gpus else {}
    requests = {"cpu": str(site.cpus)} if site.cpus else {}
    if site.memory_gib:
        limits["memory"] = requests["memory"] = f"{site.memory_gib}Gi"
    limits |= {name: str(count) for name, count in site.resources.items()}
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _volumes(job: Job, site: KubernetesSite) -> list[dict[str, Any]]:
    shm = {"medium": "Memory", "sizeLimit": f"{site.shm_gib}Gi"}
    config_map = {"name": name_of(job.job_id)}
    own: list[dict[str, Any]] = [{"name": "shm", "emptyDir": shm}, {"name": "given", "configMap": config_map}]
    if cache_folder(site) is None:
        own.append({"name": "cache", "emptyDir": {}})
    return [*own, *(_source(number, volume) for number, volume in enumerate(site.volumes))]


def _source(number: int, volume: Volume) -> dict[str, Any]:
    if volume.claim:
        return {"name": f"data-{number}", "persistentVolumeClaim": {"claimName": volume.claim}}
    return {"name": f"data-{number}", "hostPath": {"path": volume.host_path, "type": "Directory"}}


def _mounts(site: KubernetesSite) -> list[dict[str, Any]]:
    spec_mount = {"name": "given", "mountPath": GIVEN, "readOnly": True}
    own: list[dict[str, Any]] = [{"name": "shm", "mountPath": SHM}, spec_mount]
    if cache_folder(site) is None:
        own.append({"name": "cache", "mountPath": OWN_CACHE})
    for number, volume in enumerate(site.volumes):
        mount: dict[str, Any] = {"name": f"data-{number}", "mountPath": volume.mount_path}
        if volume.sub_path:
            mount["subPath"] = volume.sub_path
        if volume.read_only:
            mount["readOnly"] = True
        own.append(mount)
    return own


def _train_job(job: Job, site: KubernetesSite) -> dict[str, Any]:
    trainer = {
        "image": job.image or site.image,
        "command": escaped_words(_words(job, site)),
        "env": _environment(job, site),
        "numNodes": job.nodes,
        "numProcPerNode": job.processes_per_node,
        "resourcesPerNode": _resources(job, site),
    }
    rights = {"securityContext": _capabilities(site)} if site.capabilities else {}
    pod = {
        "terminationGracePeriodSeconds": site.grace_s,
        **_placement(site),
        "containers": [{"name": TRAINJOB_CONTAINER, "volumeMounts": _mounts(site), **rights}],
        "volumes": _volumes(job, site),
    }
    annotations = {"annotations": site.annotations} if site.annotations else {}
    template = {"metadata": {"labels": {JOB_LABEL: job.job_id}, **annotations}, "spec": pod}
    replicated = [{"name": "node", "template": {"spec": {"template": template}}}]
    patch = {"manager": "vidqa/launcher", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": replicated}}}}
    spec: dict[str, Any] = {"runtimeRef": {"name": site.runtime}, "trainer": trainer, "runtimePatches": [patch]}
    if site.queue:
        spec["suspend"] = True
    metadata = _metadata(job, labels=_queue(site))
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}
