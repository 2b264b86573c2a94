"""Settings of one Kubernetes cluster, the table [kubernetes] of site.toml, and the paths of its pods.

In the pods' spec and in the manifest, a launcher's path is replaced by the pods' path on the same volume. The copy in
the run folder, the record and the launcher's own files keep its paths. Without `launcher_path` both are equal.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, Field, model_validator

from vidqa.core import environment
from vidqa.core.environment import SECRET_NAMES, redacted
from vidqa.core.problem import Problem
from vidqa.jobs.platforms._base import Job
from vidqa.jobs.platforms.mounts import with_targets
from vidqa.jobs.platforms.site import AbsolutePath, Interface, SiteSettings, is_unseen
from vidqa.jobs.problems import NOT_SEEN, PATH_UNSEEN, SHOW_PATH, SITE_SETTINGS

HUB_FOLDER = "models--"  # prefix of model folders in the hub's cache

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
PathOrNone = AbsolutePath | Literal[""]
NameOrNone = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
Capability = Annotated[str, Field(pattern=r"^[A-Z_]+$")]


def _fit_to_be_read(text: str) -> str:
    """Refuse credentials, which belong into a Secret: a manifest is readable for all."""
    if text in SECRET_NAMES or redacted(text) != text:
        raise ValueError("a manifest is not secret: put it into the Secret")
    return text


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$"), AfterValidator(_fit_to_be_read)]
Value = Annotated[str, AfterValidator(_fit_to_be_read)]


class Toleration(SiteSettings):
    """A taint that the job's pods tolerate; no effect means every effect."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    @model_validator(mode="after")
    def _a_value_only_with_equal(self) -> Toleration:
        if self.value and self.operator == "Exists":
            raise ValueError('a value needs operator = "Equal"')
        return self


class Volume(SiteSettings):
    """One volume: a claim (PVC) or a folder of the node, and its mount path."""

    mount_path: AbsolutePath = Field(description="Path in the pod.")
    launcher_path: PathOrNone = Field("", description="Path on the launching machine, if different: the spec's path.")
    claim: NameOrNone = Field("", description="Name of a PersistentVolumeClaim.")
    host_path: PathOrNone = Field("", description="Folder of the node, instead of a claim.")
    sub_path: str = Field("", description="Folder inside the claim, instead of its root.")
    read_only: bool = Field(False, description="Mount it read-only.")

    @model_validator(mode="after")
    def _one_source(self) -> Volume:
        if bool(self.claim) == bool(self.host_path):
            raise ValueError("give claim or host_path, exactly one of them")
        return self

    @property
    def here(self) -> str:
        """The folder of the launcher."""
        return self.launcher_path or self.mount_path


class KubernetesSite(SiteSettings):
    """Settings of the platform kubernetes."""

    namespace: Name = Field("default", description="Namespace of the jobs.")
    context: str = Field("", description="Context of the kubeconfig; empty: the current one.")
    form: Literal["job", "trainjob"] = Field("job", description="A batch Job, or a Kubeflow TrainJob.")
    runtime: Name = Field("torch-distributed", description="ClusterTrainingRuntime of a TrainJob.")
    image: str = Field("", description="Engine image, unless --image names one.")
    python: str = Field("python", min_length=1, description="Python of the image.")
    image_pull_secret: NameOrNone = Field("", description="Secret for a private registry.")
    secret: Name = Field("vidqa", description="Secret with HF_TOKEN, WANDB_API_KEY, the AWS keys.")
    service_account: NameOrNone = Field("", description="Service account of the pods.")
    volumes: list[Volume] = Field(
        [], description="Claims and node folders: mount_path, launcher_path, claim or host_path, sub_path, read_only."
    )
    cluster_paths: list[AbsolutePath] = Field(
        [], description="Folders that exist only in the pods: paths below them are not checked on this machine."
    )
    node_selector: dict[str, str] = Field({}, description="Required node labels.")
    tolerations: list[Toleration] = Field([], description="Taints that the pods tolerate.")
    interface: Interface = Field(
        "", description='Network interface between nodes, such as "net1"; empty: that of their addresses.'
    )
    queue: NameOrNone = Field("", description="LocalQueue of Kueue that admits the job.")
    host_network: bool = Field(False, description="Use the node's network, which RDMA often needs.")
    annotations: dict[str, str] = Field(
        {}, description='Annotations of the pods, such as {"k8s.v1.cni.cncf.io/networks" = "rdma-net"}.'
    )
    gpu_resource: str = Field("nvidia.com/gpu", description="Name of the GPU resource.")
    resources: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description='More resources of a pod, such as {"rdma/rdma_shared_device_a" = 1}.'
    )
    capabilities: list[Capability] = Field([], description='RDMA often needs ["IPC_LOCK"], to lock memory.')
    environment: dict[Variable, Value] = Field(
        {}, description='Environment of the engine, such as {NCCL_IB_HCA = "mlx5"}; secrets belong into `secret`.'
    )
    cpus: int = Field(0, ge=0, description="CPU request of a pod; 0: none.")
    memory_gib: int = Field(0, ge=0, description="Memory request and limit of a pod; 0: none.")
    shm_gib: int = Field(16, ge=1, description="Size limit of /dev/shm, which is memory.")
    run_as_user: int | None = Field(None, ge=0, description="User id of the pods' processes.")
    grace_s: int = Field(600, ge=30, description="Seconds to save in when a pod is terminated.")
    restarts: int = Field(3, ge=0, description="Automatic restarts of a run that was saved.")
    start_limit_s: int = Field(600, ge=1, description="Seconds after which a pod that cannot start ends the job.")

    @model_validator(mode="after")
    def _mounts_differ(self) -> KubernetesSite:
        paths = [volume.mount_path for volume in self.volumes]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ValueError(f"mounted twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _a_runtime_decides_on_the_network(self) -> KubernetesSite:
        if self.host_network and self.form == "trainjob":
            raise ValueError("host_network cannot be set on a TrainJob: choose a runtime that sets it")
        return self


def pod_path(site: KubernetesSite, path: Path) -> PurePosixPath | None:
    """The pod's path of a file or folder of the launcher; None if no volume contains it."""
    volume = _volume_of(site, path)
    return None if volume is None else PurePosixPath(volume.mount_path, os.path.relpath(path, volume.here))


def in_pod(job: Job) -> Job:
    """The job with its paths, and those of its spec, as its pods see them."""
    site: KubernetesSite = job.settings
    if not any(volume.launcher_path for volume in site.volumes):
        return job
    there = {str(path): str(pod_path(site, path) or path) for path in (*job.reads, *job.writes)}
    return replace(
        job,
        run_dir=Path(pod_path(site, job.run_dir) or job.run_dir),
        reads=tuple(Path(there[str(path)]) for path in job.reads),
        writes=tuple(Path(there[str(path)]) for path in job.writes),
        spec_toml=tomli_w.dumps(_replaced(tomllib.loads(job.spec_toml), there)) if job.spec_toml else "",
    )


def cache_folder(site: KubernetesSite) -> PurePosixPath | None:
    """The pods' path of the launcher's cache; None if no volume contains it: then each pod has a temporary one."""
    return pod_path(site, environment.cache_folder())


def path_problems(job: Job) -> list[Problem]:
    """Errors for paths that pods cannot find or write; warnings for targets of links in input folders."""
    site: KubernetesSite = job.settings
    own = environment.cache_folder() if cache_folder(site) is None else None
    written = {job.run_dir, *job.writes} if not {*job.writes} & {*job.run_dir.parents} else {*job.writes}
    named = dict.fromkeys([*job.reads, *sorted(written)])
    own_problems = [problem for path in named if path != own and (problem := _problem(site, path, path in written))]
    linked = dict.fromkeys(place for path in job.reads for place in with_targets(path) if place not in named)
    maybe = [_problem(site, path, is_written=False) for path in linked]
    warnings = [replace(problem, severity="warning") for problem in maybe if problem]
    if unseen := [str(path) for path in named if is_unseen(site, path)]:
        warnings.append(NOT_SEEN.at("cluster_paths", ", ".join(unseen), severity="warning"))
    misnamed = [problem for path in job.named if (problem := _misnamed(site, path))]
    return own_problems + misnamed + warnings


def resource_problems(job: Job) -> list[Problem]:
    """Problems of resources with dedicated settings, which `resources` would override."""
    site: KubernetesSite = job.settings
    own = {site.gpu_resource: "--gpus", "cpu": "cpus", "memory": "memory_gib"}
    overridden = [(name, setting) for name, setting in own.items() if name in site.resources]
    return [SITE_SETTINGS.at("resources", f"{name} is what {setting} asks for") for name, setting in overridden]


def _problem(site: KubernetesSite, path: Path, is_written: bool) -> Problem | None:
    volume, there = _volume_of(site, path), pod_path(site, path)
    if volume is None or there is None:
        held = ", ".join(volume.here for volume in site.volumes) or "none"
        return PATH_UNSEEN.at(path, f"no volume contains it; they contain: {held}", _remedy(path))
    nearest = max((v for v in site.volumes if there.is_relative_to(v.mount_path)), key=lambda v: len(v.mount_path))
    if nearest is not volume:
        message = f"in the pod it would be {there}, hidden by the volume at {nearest.mount_path}"
        return PATH_UNSEEN.at(path, message, "give one of the two volumes another mount_path")
    if is_written and volume.read_only:
        message = f"the job writes to it, but {volume.mount_path} is mounted read-only"
        return PATH_UNSEEN.at(path, message, "give a folder of a volume without read_only")
    return None


def _misnamed(site: KubernetesSite, path: Path) -> Problem | None:
    """The problem of a folder that annotations name by an absolute path, which no launcher changes."""
    there = pod_path(site, path)
    if there is None or there == PurePosixPath(path):
        return None  # another check reports a folder outside of all volumes
    remedy = "Name media in the annotations relative to media_path, or give both sides the same path."
    return PATH_UNSEEN.at(path, f"annotations name media there by absolute paths, and in the pod it is {there}", remedy)


def _remedy(path: Path) -> str:
    """The remedy for a path that pods do not see; a hub model is in the cache of huggingface_hub."""
    name = next((part for part in path.parts if part.startswith(HUB_FOLDER)), None)
    if name is None:
        return SHOW_PATH["Kubernetes"]
    cache = Path(*path.parts[: path.parts.index(name)])
    return (
        f"Give the volume that holds the hub's cache launcher_path = '{cache}' in site.toml, or set HF_HOME to "
        "a folder of a volume."
    )


def _volume_of(site: KubernetesSite, path: Path) -> Volume | None:
    """The volume with the longest folder that contains a path of the launcher."""
    target = Path(os.path.normpath(path))
    holding = [volume for volume in site.volumes if target.is_relative_to(volume.here)]
    return max(holding, key=lambda volume: len(volume.here), default=None)


def _replaced(value: Any, there: dict[str, str]) -> Any:
    """Replace these paths in a table of a spec."""
    if isinstance(value, dict):
        return {key: _replaced(inner, there) for key, inner in value.items()}
    return there.get(value, value) if isinstance(value, str) else value
