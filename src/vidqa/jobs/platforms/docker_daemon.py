"""The Docker daemon through its SDK: connecting, and its errors as problems.

Docker itself chooses the daemon: DOCKER_HOST, else the socket of this machine.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docker.client import from_env
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

from vidqa.core import environment
from vidqa.core._optional import PACKAGE_MISSING
from vidqa.core.problem import Code, ProblemError
from vidqa.jobs.problems import IMAGE_UNUSABLE, NOT_SHARED, PLATFORM_REFUSED, PLATFORM_UNREACHABLE, REACH

TIMEOUT_S = 60
INSTALL_SSH = "into the environment of this project: pip install 'docker[ssh]'"
# Patterns of daemon messages, their problems and remedies; the first match decides.
Refusals = tuple[tuple[str, Code, str | None], ...]
DISK = (
    r"no space left on device|disk quota exceeded",
    PLATFORM_REFUSED,
    "Free space there: docker system df shows what takes it, docker system prune removes what nothing uses.",
)
OF_A_CONTAINER: Refusals = (
    DISK,
    (
        r"is already in use by container",
        PLATFORM_REFUSED,
        "Remove it (docker rm NAME), or launch again in a second: the name is made from the time.",
    ),
    (
        r"could not select device driver|nvidia-container|unresolvable CDI devices",
        PLATFORM_REFUSED,
        "Install the NVIDIA Container Toolkit on its machine and restart the daemon; --gpus 0 runs on the CPU.",
    ),
    (
        r"error setting rlimit",
        PLATFORM_REFUSED,
        "The daemon may not raise limits: set `ulimits = {}` in the table [docker] of site.toml.",
    ),
    (r"bind source path does not exist", NOT_SHARED, None),
    (r"No such image", IMAGE_UNUSABLE, None),
    (r"", PLATFORM_REFUSED, None),
)
OF_A_PULL: Refusals = (
    DISK,
    (r"manifest unknown|manifest for .* not found|name unknown", IMAGE_UNUSABLE, None),
    (
        r"dial tcp|no such host|i/o timeout|TLS handshake|proxyconnect|request canceled|context deadline exceeded",
        IMAGE_UNUSABLE,
        "Its registry does not answer there: check the name, the network and the daemon's proxy, or load the image "
        "(docker load -i FILE), or build it from this checkout: docker/build.sh",
    ),
    (r"", IMAGE_UNUSABLE, "Log in with an account that may read it (docker login REGISTRY)."),
)


@contextmanager
def daemon() -> Iterator[Any]:
    """The daemon's low-level client. Raises PLATFORM_UNREACHABLE, also if the connection is lost inside the block,
    ENV_PACKAGE_MISSING, and other errors of the daemon as problems."""
    if address().startswith("ssh://") and find_spec("paramiko") is None:
        raise PACKAGE_MISSING.error(address(), "the package 'paramiko' is not installed", INSTALL_SSH)
    try:
        client = from_env(timeout=TIMEOUT_S).api
    except (DockerException, RequestException, ValueError) as failed:
        raise unreachable(failed) from failed
    try:
        yield client
    except APIError as refused:
        raise refusal(address(), refused) from refused
    except RequestException as failed:
        raise unreachable(failed) from failed
    finally:
        client.close()


def address() -> str:
    return environment.docker_host() or "unix:///var/run/docker.sock"


def is_local() -> bool:
    """Whether the daemon runs on this machine and sees the same files."""
    return address().startswith(("unix://", "http+unix://"))


def unreachable(failed: BaseException) -> ProblemError:
    if re.search(r"Permission ?denied", str(failed), re.IGNORECASE):
        return PLATFORM_UNREACHABLE.error(address(), "the daemon's socket may not be opened", REACH["Docker's socket"])
    reason = re.sub(r"\s+", " ", str(failed))[:200]
    return PLATFORM_UNREACHABLE.error(address(), f"it does not answer: {reason}", REACH["Docker"])


@contextmanager
def refusals(where: object, patterns: Refusals = OF_A_CONTAINER) -> Iterator[None]:
    """Convert the daemon's errors inside the block into problems at `where`."""
    try:
        yield
    except APIError as refused:
        raise refusal(where, refused, patterns) from refused


def refusal(where: object, refused: APIError, patterns: Refusals = OF_A_CONTAINER) -> ProblemError:
    message = environment.redacted(re.sub(r"\s+", " ", str(refused.explanation or refused)))[:400]
    code, remedy = next((row[1], row[2]) for row in patterns if re.search(row[0], message, re.IGNORECASE))
    return code.error(where, f"the daemon says: {message}", remedy)


@contextmanager
def unless_over() -> Iterator[None]:
    """Ignore the errors for a container that is gone or has already changed its state."""
    try:
        yield
    except APIError as refused:
        if refused.status_code not in (404, 409):
            raise


def facts_of(inspect: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The result of the daemon's `inspect_image` or `inspect_container` for an image or container; None without it."""
    try:
        return dict(inspect(name))
    except NotFound:
        return None


def pull(client: Any, image: str) -> None:
    """Pull an image. Raises IMAGE_UNUSABLE, PLATFORM_REFUSED."""
    with refusals(image, OF_A_PULL):
        for line in client.pull(image, stream=True, decode=True):
            if "error" in line:
                raise APIError(str(line["error"]), explanation=str(line["error"]))


def put_file(client: Any, container: str, path: Path, value: Any, owner: str) -> None:
    """Write a JSON file that only `owner`, "UID:GID", can read into a container that has not started."""
    content = json.dumps(value).encode()
    entry = tarfile.TarInfo(path.name)
    entry.size, entry.mode, (entry.uid, entry.gid) = len(content), 0o400, map(int, owner.split(":"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    client.put_archive(container, str(path.parent), packed.getvalue())


def read_file(client: Any, container: str, path: str) -> bytes | None:
    """A file as the container sees it, through its mounts; None if it does not exist."""
    try:
        pieces, _ = client.get_archive(container, path)
    except NotFound:
        return None
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        member = archive.next()
        file = archive.extractfile(member) if member else None
        return file.read() if file else None
