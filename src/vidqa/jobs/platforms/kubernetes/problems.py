"""Problems of the platform kubernetes."""

from vidqa.core.problem import Code, Exit

NO_CLUSTER = Code(
    "PLATFORM_KUBERNETES_NO_CLUSTER",
    "No kubeconfig says which cluster to use, or the one there is cannot be read.",
    "Let KUBECONFIG name a kubeconfig file, check `kubectl config get-contexts`, and set context in site.toml.",
    Exit.ENVIRONMENT,
)
UNREACHABLE = Code(
    "PLATFORM_KUBERNETES_UNREACHABLE",
    "The cluster's API server does not answer, or answers that it cannot serve now (429, 5xx).",
    "Check the network, VPN and `kubectl get --raw /readyz`, then run this again.",
    Exit.ENVIRONMENT,
)
FORBIDDEN = Code(
    "PLATFORM_KUBERNETES_FORBIDDEN",
    "The cluster does not let you do what a launch needs.",
    "Ask for create, get, delete on jobs (or trainjobs), configmaps, services; get, list, watch, delete on pods; get "
    "on pods/log.",
    Exit.ENVIRONMENT,
)
REFUSED = Code(
    "PLATFORM_KUBERNETES_REFUSED",
    "The cluster does not accept the manifest: its validation, an admission policy or a quota says no.",
    "Read what it says, and change [kubernetes] in site.toml or the spec; --dry-run prints the manifest.",
    Exit.ENVIRONMENT,
)
NOT_MOUNTED = Code(
    "PLATFORM_KUBERNETES_NOT_MOUNTED",
    "A path that the spec names, or its model's in the hub's cache, lies in no volume of the pods, or is to be written "
    "in a read-only one.",
    "Add the volume to [kubernetes] in site.toml: mount_path, and launcher_path where this machine sees it elsewhere. "
    "Or move the data into one that is there.",
)
SECRET_MISSING = Code(
    "PLATFORM_KUBERNETES_SECRET_MISSING",
    "The spec uploads its results or uses wandb, and the cluster's Secret does not have the keys for it.",
    "Put them into it (kubectl create secret generic vidqa --from-env-file=FILE), or let the spec do without: "
    "logging.logger, train.ckpt.upload_hf, upload_s3. A service_account stands for the AWS keys.",
    Exit.ENVIRONMENT,
)
NOT_STARTING = Code(
    "PLATFORM_KUBERNETES_NOT_STARTING",
    "The image of a pod could not be pulled, or its container not be made, for so long that the job was ended.",
    "Read the message of the pod, correct the image, image_pull_secret or secret, and launch again.",
    Exit.ENVIRONMENT,
)
