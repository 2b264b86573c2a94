"""Settings of one Kubernetes cluster: the table [kubernetes] of site.toml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from vidqa.core.environment import SECRET_NAMES, redacted
from vidqa.jobs.platforms.site import Interface, SiteSettings

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
NameOrNone = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/")]
PathOrNone = Annotated[str, Field(pattern=r"^(/.*)?$")]
Capability = Annotated[str, Field(pattern=r"^[A-Z_]+$")]


def _fit_to_be_read(text: str) -> str:
    """Refuse credentials, which belong into a Secret: a manifest is readable for all."""
    if text in SECRET_NAMES or redacted(text) != text:
        raise ValueError("a manifest is for all to read: put it into the Secret")
    return text


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$"), AfterValidator(_fit_to_be_read)]
Value = Annotated[str, AfterValidator(_fit_to_be_read)]


class Toleration(SiteSettings):
    """A taint that the job's pods may run on; no effect means every effect."""

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
    """One volume: a claim (PVC) or a folder of the node, and where it is mounted."""

    mount_path: AbsolutePath = Field(description="Where the pod sees it.")
    launcher_path: PathOrNone = Field("", description="Where the launcher sees it, if elsewhere: the spec's path.")
    claim: NameOrNone = Field("", description="Name of a PersistentVolumeClaim.")
    host_path: PathOrNone = Field("", description="A folder of the node, in place of a claim.")
    sub_path: str = Field("", description="A folder inside the claim, in place of its root.")
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
    context: str = Field("", description="Context of the kubeconfig; empty: its current one.")
    form: Literal["job", "trainjob"] = Field("job", description="A batch Job, or a Kubeflow TrainJob.")
    runtime: Name = Field("torch-distributed", description="ClusterTrainingRuntime of a TrainJob.")
    image: str = Field("", description="Engine image, where --image does not name one.")
    python: str = Field("python", description="The image's Python.")
    image_pull_secret: NameOrNone = Field("", description="Secret for a private registry.")
    secret: Name = Field("vidqa", description="Secret with HF_TOKEN, WANDB_API_KEY, the AWS keys.")
    service_account: NameOrNone = Field("", description="Service account of the pods.")
    volumes: list[Volume] = Field(
        [], description="Claims and node folders: mount_path, launcher_path, claim or host_path, sub_path, read_only."
    )
    cluster_paths: list[AbsolutePath] = Field(
        [], description="Folders that pods see and this machine does not: what is below them is not checked here."
    )
    node_selector: dict[str, str] = Field({}, description="Labels that a node must have.")
    tolerations: list[Toleration] = Field([], description="Taints that the pods tolerate.")
    interface: Interface = Field(
        "", description='Network by which several nodes talk, such as "net1"; empty: what their addresses say.'
    )
    queue: NameOrNone = Field("", description="LocalQueue of Kueue that admits the job.")
    host_network: bool = Field(False, description="Pods use their node's own network, as RDMA often needs it.")
    annotations: dict[str, str] = Field(
        {}, description='Annotations of the pods, such as {"k8s.v1.cni.cncf.io/networks" = "rdma-net"}.'
    )
    gpu_resource: str = Field("nvidia.com/gpu", description="Name of the GPU resource.")
    resources: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description='More of each pod, such as {"rdma/rdma_shared_device_a" = 1}.'
    )
    capabilities: list[Capability] = Field([], description='For RDMA, often ["IPC_LOCK"]: to lock memory.')
    environment: dict[Variable, Value] = Field(
        {}, description='Variables of the engine, such as {NCCL_IB_HCA = "mlx5"}; secrets belong into `secret`.'
    )
    cpus: Annotated[int, Field(ge=0)] = Field(0, description="CPU request of a pod; 0: none.")
    memory_gib: Annotated[int, Field(ge=0)] = Field(0, description="Memory request and limit of a pod; 0: none.")
    shm_gib: Annotated[int, Field(ge=1)] = Field(16, description="Size limit of /dev/shm, which is memory.")
    run_as_user: Annotated[int, Field(ge=0)] | None = Field(None, description="User id of the pods' processes.")
    grace_s: Annotated[int, Field(ge=30)] = Field(600, description="Time to save in when a pod is ended.")
    restarts: Annotated[int, Field(ge=0)] = Field(3, description="How often a run that saved itself goes on by itself.")
    start_limit_s: Annotated[int, Field(ge=1)] = Field(
        600, description="A pod whose image or settings keep it from starting for so long ends the job."
    )

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
            raise ValueError("host_network cannot be set on a TrainJob: choose a runtime that has it")
        return self
