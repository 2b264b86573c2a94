"""All reads of environment variables, in one place so that they can be listed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

# Their values are redacted from all output; the names are those of the libraries that read them.
SECRET_NAMES = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
PARENT = "VIDQA_PARENT"  # process id of the parent with which child processes end
RENDEZVOUS = "VIDQA_RENDEZVOUS"  # the handle of the socket on which rank 0 listens for the other ranks
SERVING_KEY = "VIDQA_API_KEY"  # for clients of a server; not passed to jobs
# For processes of the engine: models were fetched before, and a log shows no progress bar.
OF_THE_ENGINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
# Processes of one machine connect over its loopback; gloo and NCCL take the interface to listen on from these. "="
# tells NCCL that the name is complete.
LOOPBACK = "127.0.0.1"
ON_ONE_NODE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
GPUS = "CUDA_VISIBLE_DEVICES"
SOURCE = Path(__file__).parents[2]  # the folder that holds this package
_LENT: ContextVar[tuple[str, ...] | None] = ContextVar("lent", default=None)  # the GPUs of a launch in this context
SHORTEST_SECRET = 8  # characters; shorter values are placeholders, and occur by chance
_CREDENTIALS = re.compile(r"://(?:[^\s/'\"<>@]+|[^\s/'\"<>@:]*:(?!\d+/)[^\s'\"<>@]*)@")
_OF_THIS_PROCESS = re.compile(
    r"(TORCHELASTIC_\w+|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|GROUP_WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|PYTHON\w+|VIRTUAL_ENV)$"
)
_TOKEN = re.compile(r"((?:[Aa]uthorization\W{1,5}\w+|\bBearer)\s+)[\w.~+/=-]{16,}|\bhf_[A-Za-z0-9]{20,}")


def hf_token() -> str | None:
    """The Hugging Face token, by the two names that huggingface_hub reads, without a trailing line break."""
    return (os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or "").strip() or None


def hf_endpoint() -> str | None:
    """The hub's address if it is not huggingface.co: a mirror, or the user's own server."""
    return os.environ.get("HF_ENDPOINT") or None


def serving_key() -> str | None:
    """The key that clients of a server must send; None: no key is needed."""
    return os.environ.get(SERVING_KEY) or None


def s3_endpoint() -> str | None:
    """The address of S3 if it is not Amazon's: the user's own server, by the name that all clients read."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def kubeconfig() -> str | None:
    """The paths of the Kubernetes configuration, joined by colons; None: the client's own default."""
    return os.environ.get("KUBECONFIG") or None


def docker_host() -> str | None:
    """The address of the Docker daemon if it is not this machine's own socket."""
    return os.environ.get("DOCKER_HOST") or None


def state_folder() -> Path:
    """The folder of job records. It lies outside of results, so that deleting results never loses a job."""
    return Path(os.environ.get("VIDQA_STATE_DIR") or _home() / ".vidqa").absolute()


def jobs_folder() -> Path:
    """The folder of job records, one JSON file each."""
    return state_folder() / "jobs"


def cache_folder() -> Path:
    """The folder of the frame cache, media probes and code compiled by torch."""
    return Path(os.environ.get("VIDQA_CACHE_DIR") or _home() / ".cache" / "vidqa").absolute()


def _home() -> Path:
    """The user's folder; for a user without one, as in a container, a folder of this user in the temporary folder."""
    home = os.path.expanduser("~")
    return Path(home) if os.path.isabs(home) else Path(tempfile.gettempdir(), f"vidqa-{os.getuid()}")


def rank() -> int:
    """This process's rank, as torchrun sets it; 0 outside torchrun."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_of_torchrun() -> bool:
    """Whether torchrun started this process: then its rendezvous provides a store."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def master_port() -> int:
    """The port on which the ranks of one node connect over its loopback."""
    return int(os.environ["MASTER_PORT"])


def take_rendezvous() -> int | None:
    """The handle of the socket on which this process, rank 0, listens for the other ranks; None if none was opened. The
    variable is removed, so that child processes do not inherit it."""
    return _take(RENDEZVOUS)


def take_parent() -> int | None:
    """The process id of the script or torchrun that started this process, with which it ends; None if there is none.
    The variable is removed, because child processes have another parent."""
    return _take(PARENT)


def _take(name: str) -> int | None:
    written = os.environ.pop(name, None)
    return int(written) if written else None


def visible_gpus() -> list[str] | None:
    """The GPUs of `with_gpus`, else those of CUDA_VISIBLE_DEVICES, as written there; None without either."""
    if (lent := _LENT.get()) is not None:
        return list(lent)
    return gpu_names(os.environ.get(GPUS))


def gpu_names(written: str | None) -> list[str] | None:
    """The GPUs in a value of CUDA_VISIBLE_DEVICES; None without a value."""
    names = written.split(",") if written is not None else None
    return names and [name.strip() for name in names if name.strip() not in ("", "-1")]


@contextmanager
def with_gpus(names: Sequence[str]) -> Iterator[None]:
    """Restrict processes launched inside the block to these GPUs. Other threads, and this process, are unaffected."""
    token = _LENT.set(tuple(names))
    try:
        yield
    finally:
        _LENT.reset(token)


def has(name: str) -> bool:
    """Whether a variable is set: for secrets that are passed by name, and settings with precedence over ours."""
    return bool(os.environ.get(name))


def values(names: Iterable[str]) -> dict[str, str]:
    """The variables of these names that are set, with their values."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def adopt(variables: dict[str, str]) -> None:
    """Set variables for this process and its children."""
    os.environ.update(variables)


def redacted(text: str) -> str:
    """Remove secrets from a text: values of secret variables, strings like tokens, user and password of URLs."""
    if not text:
        return text
    for name, value in values((*SECRET_NAMES, SERVING_KEY)).items():
        if len(secret := value.strip()) >= SHORTEST_SECRET:
            text = text.replace(secret, f"<{name}>")
    if "@" in text:
        text = _CREDENTIALS.sub("://<credentials>@", text)
    return _TOKEN.sub(r"\1<token>", text)


def python_path() -> str:
    """A PYTHONPATH with this program before the current one. An empty part would mean the working folder."""
    return os.pathsep.join([str(SOURCE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: ours with changes, and with the GPUs of `with_gpus`."""
    lent = _LENT.get()
    return {**os.environ, **({} if lent is None else {GPUS: ",".join(lent)}), **changes}


def foreign_environment(**changes: str) -> dict[str, str]:
    """The environment of a child with another interpreter: ours with changes, without variables that torchrun and
    Python set for this process."""
    return {name: value for name, value in child_environment(**changes).items() if not _OF_THIS_PROCESS.match(name)}
