"""Problems of the platform kubernetes."""

from vidqa.problem import Code, Exit

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
CONFLICT = Code(
    "PLATFORM_KUBERNETES_CONFLICT",
    "The namespace has an object of this name that belongs to another job.",
    "Launch again, which makes a new name, or remove that object.",
    Exit.ENVIRONMENT,
)
NOT_MOUNTED = Code(
    "PLATFORM_KUBERNETES_NOT_MOUNTED",
    "A path that the spec names lies in no volume of the pods, or is to be written in a read-only one.",
    "Add a [[kubernetes.volumes]] with that mount_path to site.toml, or move the data below one that is mounted.",
)
NOT_STARTING = Code(
    "PLATFORM_KUBERNETES_NOT_STARTING",
    "The image of a pod could not be pulled, or its container not be made, for so long that the job was ended.",
    "Read the message of the pod, correct the image, image_pull_secret or secret, and launch again.",
    Exit.ENVIRONMENT,
)
