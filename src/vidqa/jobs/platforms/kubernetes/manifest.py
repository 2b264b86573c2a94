"""The Kubernetes objects of one job, in the form for `kubectl apply -f manifest.yaml`.

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
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite, cache_folder, in_pod

JOB_LABEL = "vidqa/job"
NODE_LABEL = "batch.kubernetes.io/job-completion-index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CONTAINER = "engine"
TRAINJOB_CONTAINER = "node"  # its name in the torch runtimes of Kubeflow
SPEC_MOUNT = "/etc/vidqa"  # mount path of the ConfigMap
SPEC = "spec.toml"  # its key with the spec
TERMINATION_MESSAGE_PATH = "/dev/termination-log"
POD_CACHE_FOLDER = "/var/cache/vidqa"  # if the site has no cache folder on a volume; deleted with the pod
Json = dict[str, Any]


def manifest(job: Job) -> str:
    """The YAML documents of a job, in the order of their application."""
    return yaml.safe_dump_all(objects(job), sort_keys=False, width=120)


def objects(job: Job) -> list[Json]:
    """The objects with apiVersion and kind; the Job or TrainJob is the last."""
    site, job = job.settings, in_pod(job)
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


def object_name(job_id: str) -> str:
    """The name of a job's objects, which must be a DNS label."""
    return "vidqa-" + re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")


def escaped_words(words: Iterable[str]) -> list[str]:
    """Words of a command, or values of variables, with every $ doubled, since the kubelet would expand $(NAME), even to
    a secret. A Placeholder is meant to be expanded and is unchanged."""
    return [str(word) if isinstance(word, Placeholder) else word.replace("$", "$$") for word in words]


def command(job: Job) -> tuple[str, ...]:
    """The command of a pod: the pod program, and after `--` the torchrun that it starts. It reads the mounted spec: the
    one in the run folder may be the launcher's, with other paths."""
    return _command(in_pod(job), job.settings)


def _command(job: Job, site: KubernetesSite) -> tuple[str, ...]:
    """The `command` of a job with the paths of its pods."""
    pod_options = (
        "--job",
        job.job_id,
        "--run-dir",
        str(job.run_dir),
        "--given",
        SPEC_MOUNT,
        "--last-words",
        TERMINATION_MESSAGE_PATH,
    )
    node, first_node = "0", tuple[str, ...]()
    if site.form == "trainjob":  # the runtime sets nodes, ranks and the rendezvous in PET_* variables
        node, engine = Placeholder("$(PET_NODE_RANK)"), (site.python, *TORCHRUN, *engine_words(job))
    elif job.nodes == 1:
        engine = torchrun(site.python, job)
    else:  # rank 0 and its log are in the first pod
        host, node = f"{object_name(job.job_id)}-0.{object_name(job.job_id)}", Placeholder("$(JOB_COMPLETION_INDEX)")
        first_node = ("--first-node", host)
        engine = torchrun(site.python, job, f"{host}:{_port(job, site)}", node)
    engine = tuple(f"{SPEC_MOUNT}/{SPEC}" if word == str(job.spec) else word for word in engine)
    pod_program = (site.python, "-m", "vidqa.jobs.platforms.kubernetes.pod", *pod_options)
    return (*pod_program, "--node", node, *first_node, "--", *engine, GO_ON)


def _port(job: Job, site: KubernetesSite) -> int:
    """The rendezvous port. On the host network several jobs may share a node, so each has a different port, below the
    ephemeral ports."""
    return 20_000 + zlib.crc32(job.job_id.encode()) % 10_000 if site.host_network else RENDEZVOUS_PORT


def _object(job: Job, version: str, kind: str, labels: dict[str, str] | None = None, **parts: Json) -> Json:
    """An object with the job's name and labels; `parts` are its further top-level keys (spec, data)."""
    own = {"app.kubernetes.io/name": "vidqa", JOB_LABEL: job.job_id, **(labels or {})}
    metadata = {"name": object_name(job.job_id), "namespace": job.settings.namespace, "labels": own}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _service(job: Job) -> Json:
    """The `spec` of a headless Service: it gives every pod a DNS name, also before the pod is ready."""
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {JOB_LABEL: job.job_id},
        "ports": [{"name": "rendezvous", "port": _port(job, job.settings)}],
    }


def _job(job: Job, site: KubernetesSite) -> Json:
    """The `spec` of a Job."""
    indexed = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
    return {
        **(indexed if job.nodes > 1 else {}),
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
        **_suspend_for_kueue(site),
    }


def _train_job(job: Job, site: KubernetesSite) -> Json:
    """The `spec` of a TrainJob: the trainer, and a patch of the runtime's pods."""
    container = _engine_container(job, site)
    trainer = {
        **{name: container[name] for name in ("image", "command", "env")},
        "numNodes": job.nodes,
        "numProcPerNode": job.processes_per_node,
        "resourcesPerNode": container["resources"],
    }
    volumes, volume_mounts = _volumes(job, site)
    node: Json = {"name": TRAINJOB_CONTAINER, "volumeMounts": volume_mounts}
    node |= {"securityContext": _added_capabilities(site)} if site.capabilities else {}
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
    return {**runtime, **_suspend_for_kueue(site)}


def _suspend_for_kueue(site: KubernetesSite) -> Json:
    return {"suspend": True} if site.queue else {}  # Kueue starts it


def _failure_rules() -> list[Json]:
    """The rules of a podFailurePolicy: a disruption is no failure, a pod that saved and stopped counts towards
    backoffLimit, and any other failure is final."""
    saved = [int(Exit.NOT_DONE)]
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": saved}},
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0, *saved]}},
    ]


def _pod(job: Job, site: KubernetesSite) -> Json:
    """The `spec` of a pod."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": site.grace_s,
        "automountServiceAccountToken": False,  # the engine does not use the API
        "enableServiceLinks": False,
        **({"subdomain": object_name(job.job_id)} if job.nodes > 1 else {}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if site.host_network else {}),
        **_placement(site),
        "containers": [_engine_container(job, site)],
        "volumes": _volumes(job, site)[0],
    }


def _engine_container(job: Job, site: KubernetesSite) -> Json:
    return {
        "name": CONTAINER,
        "image": job.image or site.image,
        "command": escaped_words(_command(job, site)),
        "env": _environment(job, site),
        "resources": _resources(job, site),
        "securityContext": {"allowPrivilegeEscalation": False, **_added_capabilities(site)},
        "terminationMessagePath": TERMINATION_MESSAGE_PATH,
        "volumeMounts": _volumes(job, site)[1],
    }


def _added_capabilities(site: KubernetesSite) -> Json:
    return {"capabilities": {"add": site.capabilities}} if site.capabilities else {}


def _placement(site: KubernetesSite) -> Json:
    """Node selection, user and accounts of pods; only the keys that the site sets."""
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
    """The volumes of a pod, and the volumeMounts of its container."""
    volumes: list[Json] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{site.shm_gib}Gi"}},
        {"name": "given", "configMap": {"name": object_name(job.job_id)}},
    ]
    volume_mounts: list[Json] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "given", "mountPath": SPEC_MOUNT, "readOnly": True},
    ]
    if cache_folder(site) is None:
        volumes.append({"name": "cache", "emptyDir": {}})
        volume_mounts.append({"name": "cache", "mountPath": POD_CACHE_FOLDER})
    for number, volume in enumerate(site.volumes):
        name = {"name": f"data-{number}"}
        claim = {"persistentVolumeClaim": {"claimName": volume.claim}}
        volumes.append(
            {**name, **(claim if volume.claim else {"hostPath": {"path": volume.host_path, "type": "Directory"}})}
        )
        options = {"subPath": volume.sub_path, "readOnly": volume.read_only}
        volume_mounts.append({**name, "mountPath": volume.mount_path, **_without_empty(options)})
    return volumes, volume_mounts


def required_secrets(job: Job) -> tuple[str, ...]:
    """Names of the secrets that pods need; with a service account not those of S3, which its role may replace."""
    has_role = bool(job.settings.service_account)
    return tuple(name for name in job.needs if not (has_role and name.startswith("AWS_")))


def _environment(job: Job, site: KubernetesSite) -> list[Json]:
    """Plain settings, and secrets by reference: a pod does not start without a required key."""
    cache = str(cache_folder(site) or POD_CACHE_FOLDER)
    settings = {**engine_environment(job, site.cpus or None), "VIDQA_CACHE_DIR": cache, **site.environment}
    keys = [{"name": site.secret, "key": name, "optional": name not in required_secrets(job)} for name in SECRET_NAMES]
    return [*literal_variables(settings), *({"name": key["key"], "valueFrom": {"secretKeyRef": key}} for key in keys)]


def literal_variables(settings: dict[str, str]) -> list[Json]:
    """The `env` entries of variables with literal values."""
    values = zip(settings, escaped_words(settings.values()), strict=True)
    return [{"name": name, "value": value} for name, value in values]


def _resources(job: Job, site: KubernetesSite) -> Json:
    """The `resources` of the container. Quantities are strings, as some clients require."""
    limits = {site.gpu_resource: str(job.gpus)} if job.gpus else {}
    requests = {"cpu": str(site.cpus)} if site.cpus else {}
    if site.memory_gib:
        limits["memory"] = requests["memory"] = f"{site.memory_gib}Gi"
    limits |= {name: str(count) for name, count in site.resources.items()}
    return _without_empty({"requests": requests, "limits": limits})
