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

from vidqa.core.environment import SECRET_NAMES
from vidqa.core.problem import Exit
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.engine_process import (
    GO_ON,
    RENDEZVOUS_PORT,
    TORCHRUN,
    Placeholder,
    engine_environment,
    engine_words,
    torchrun,
)
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite, cache_folder, in_pod, site_of

JOB_LABEL = "vidqa/job"
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CONTAINER = "engine"
TRAINJOB_CONTAINER = "node"  # its name in the torch runtimes of Kubeflow
SPEC_MOUNT = "/etc/vidqa"  # where the ConfigMap is mounted
SPEC = "spec.toml"  # in it
LAST_WORDS = "/dev/termination-log"
OWN_CACHE = "/var/cache/vidqa"
Json = dict[str, Any]


def manifest(job: Job) -> str:
    """The YAML documents of a job, in the order of applying."""
    return yaml.safe_dump_all(objects(job), sort_keys=False, width=120)


def objects(job: Job) -> list[Json]:
    """Each object with its apiVersion and kind; the Job or TrainJob is the last."""
    site, job = site_of(job), in_pod(job)
    config_map = _object(job, "v1", "ConfigMap", data={SPEC: job.spec_toml})
    queue = {"labels": {QUEUE_LABEL: site.queue}} if site.queue else {}
    if site.form == "trainjob":
        return [
            config_map,
            _object(job, "trainer.kubeflow.org/v1alpha1", "TrainJob", spec=_train_job(job, site), **queue),
        ]
    main = _object(job, "batch/v1", "Job", spec=_job(job, site), **queue)
    return (
        [config_map, main] if job.nodes == 1 else [config_map, _object(job, "v1", "Service", spec=_service(job)), main]
    )


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
    return _command(in_pod(job), site_of(job))


def _command(job: Job, site: KubernetesSite) -> tuple[str, ...]:
    """`command` of a job with the paths of its pods."""
    about = ("--job", job.job_id, "--run-dir", str(job.run_dir), "--given", SPEC_MOUNT, "--last-words", LAST_WORDS)
    node, first_node = "0", tuple[str, ...]()
    if site.form == "trainjob":  # the runtime sets nodes, ranks and the rendezvous in PET_* variables
        node, engine = Placeholder("$(PET_NODE_RANK)"), (site.python, *TORCHRUN, *engine_words(job))
    elif job.nodes == 1:
        engine = torchrun(site.python, job)
    else:  # rank 0, and its log, in the first pod
        host, node = f"{name_of(job.job_id)}-0.{name_of(job.job_id)}", Placeholder("$(JOB_COMPLETION_INDEX)")
        first_node = ("--first-node", host)
        engine = torchrun(site.python, job, f"{host}:{_port(job, site)}", node)
    engine = tuple(f"{SPEC_MOUNT}/{SPEC}" if word == str(job.spec) else word for word in engine)
    start = (site.python, "-m", "vidqa.jobs.platforms.kubernetes.pod", *about)
    return (*start, "--node", node, *first_node, "--", *engine, GO_ON)


def _port(job: Job, site: KubernetesSite) -> int:
    """The rendezvous port. On the host network several jobs may share a node, so each has its own port, below the
    ephemeral ports."""
    return 20_000 + zlib.crc32(job.job_id.encode()) % 10_000 if site.host_network else RENDEZVOUS_PORT


def _object(job: Job, version: str, kind: str, labels: dict[str, str] | None = None, **parts: Json) -> Json:
    own = {"app.kubernetes.io/name": "vidqa", JOB_LABEL: job.job_id, **(labels or {})}
    metadata = {"name": name_of(job.job_id), "namespace": site_of(job).namespace, "labels": own}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _service(job: Job) -> Json:
    """A headless Service: it gives every pod a DNS name, also before the pod is ready."""
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {JOB_LABEL: job.job_id},
        "ports": [{"name": "rendezvous", "port": _port(job, site_of(job))}],
    }


def _job(job: Job, site: KubernetesSite) -> Json:
    several = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
    return {
        **(several if job.nodes > 1 else {}),
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
        **_suspended(site),
    }


def _train_job(job: Job, site: KubernetesSite) -> Json:
    """The trainer of the runtime, and a patch of its pods."""
    container = _container(job, site)
    trainer = {
        **{name: container[name] for name in ("image", "command", "env")},
        "numNodes": job.nodes,
        "numProcPerNode": job.processes_per_node,
        "resourcesPerNode": container["resources"],
    }
    volumes, volume_mounts = _volumes(job, site)
    node: Json = {"name": TRAINJOB_CONTAINER, "volumeMounts": volume_mounts}
    node |= {"securityContext": _capabilities(site)} if site.capabilities else {}
    pod = {
        "terminationGracePeriodSeconds": site.grace_s,
        **_placement(site),
        "containers": [node],
        "volumes": volumes,
    }
    annotations = {"annotations": site.annotations} if site.annotations else {}
    template = {"metadata": {"labels": {JOB_LABEL: job.job_id}, **annotations}, "spec": pod}
    replicated = [{"name": "node", "template": {"spec": {"template": template}}}]
    patch = {"manager": "vidqa/launcher", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": replicated}}}}
    runtime = {"runtimeRef": {"name": site.runtime}, "trainer": trainer, "runtimePatches": [patch]}
    return {**runtime, **_suspended(site)}


def _suspended(site: KubernetesSite) -> Json:
    return {"suspend": True} if site.queue else {}  # Kueue starts it


def _failure_rules() -> list[Json]:
    """Disruptions are no failure; a run that saved itself is restarted a few times; other failures are final."""
    saved = [int(Exit.NOT_DONE)]
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": saved}},
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0, *saved]}},
    ]


def _pod(job: Job, site: KubernetesSite) -> Json:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": site.grace_s,
        "automountServiceAccountToken": False,  # the engine does not use the API
        "enableServiceLinks": False,
        **({"subdomain": name_of(job.job_id)} if job.nodes > 1 else {}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if site.host_network else {}),
        **_placement(site),
        "containers": [_container(job, site)],
        "volumes": _volumes(job, site)[0],
    }


def _container(job: Job, site: KubernetesSite) -> Json:
    return {
        "name": CONTAINER,
        "image": job.image or site.image,
        "command": escaped_words(_command(job, site)),
        "env": _environment(job, site),
        "resources": _resources(job, site),
        "securityContext": {"allowPrivilegeEscalation": False, **_capabilities(site)},
        "terminationMessagePath": LAST_WORDS,
        "volumeMounts": _volumes(job, site)[1],
    }


def _capabilities(site: KubernetesSite) -> Json:
    return {"capabilities": {"add": site.capabilities}} if site.capabilities else {}


def _placement(site: KubernetesSite) -> Json:
    """Placement and user of pods; only keys that are set."""
    user = site.run_as_user
    placement = {
        "serviceAccountName": site.service_account,
        "imagePullSecrets": [{"name": site.image_pull_secret}] if site.image_pull_secret else None,
        "nodeSelector": site.node_selector,
        "tolerations": [_without_empty(taint.model_dump()) for taint in site.tolerations],
        "securityContext": None if user is None else {"runAsUser": user, "runAsNonRoot": user != 0},
    }
    return _without_empty(placement)


def _without_empty(table: Json) -> Json:
    return {name: value for name, value in table.items() if value}


def _volumes(job: Job, site: KubernetesSite) -> tuple[list[Json], list[Json]]:
    """The volumes of a pod, and where they are mounted."""
    volumes: list[Json] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{site.shm_gib}Gi"}},
        {"name": "given", "configMap": {"name": name_of(job.job_id)}},
    ]
    volume_mounts: list[Json] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "given", "mountPath": SPEC_MOUNT, "readOnly": True},
    ]
    if cache_folder(site) is None:
        volumes.append({"name": "cache", "emptyDir": {}})
        volume_mounts.append({"name": "cache", "mountPath": OWN_CACHE})
    for number, volume in enumerate(site.volumes):
        name = {"name": f"data-{number}"}
        claim = {"persistentVolumeClaim": {"claimName": volume.claim}}
        volumes.append(
            {**name, **(claim if volume.claim else {"hostPath": {"path": volume.host_path, "type": "Directory"}})}
        )
        options = {"subPath": volume.sub_path, "readOnly": volume.read_only}
        volume_mounts.append({**name, "mountPath": volume.mount_path, **_without_empty(options)})
    return volumes, volume_mounts


def needed(job: Job) -> tuple[str, ...]:
    """The secrets that pods need. With a service account not those of S3: its role may replace them."""
    has_role = bool(site_of(job).service_account)
    return tuple(name for name in job.needs if not (has_role and name.startswith("AWS_")))


def _environment(job: Job, site: KubernetesSite) -> list[Json]:
    """Plain settings, and secrets by reference: a pod does not start without a needed key."""
    cache = str(cache_folder(site) or OWN_CACHE)
    settings = {**engine_environment(job, site.cpus or None), "VIDQA_CACHE_DIR": cache, **site.environment}
    keys = [{"name": site.secret, "key": name, "optional": name not in needed(job)} for name in SECRET_NAMES]
    return [*plain(settings), *({"name": key["key"], "valueFrom": {"secretKeyRef": key}} for key in keys)]


def plain(settings: dict[str, str]) -> list[Json]:
    """Variables of a container with literal values."""
    values = zip(settings, escaped_words(settings.values()), strict=True)
    return [{"name": name, "value": value} for name, value in values]


def _resources(job: Job, site: KubernetesSite) -> Json:
    """Quantities are strings, as some clients require."""
    limits = {site.gpu_resource: str(job.gpus)} if job.gpus else {}
    requests = {"cpu": str(site.cpus)} if site.cpus else {}
    if site.memory_gib:
        limits["memory"] = requests["memory"] = f"{site.memory_gib}Gi"
    limits |= {name: str(count) for name, count in site.resources.items()}
    return _without_empty({"requests": requests, "limits": limits})
