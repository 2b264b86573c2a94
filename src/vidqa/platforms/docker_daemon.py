"""The Docker daemon through its SDK: connecting, and its refusals as problems of ours.

Which daemon is asked is Docker's own affair: DOCKER_HOST, and without it the socket of this machine.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from docker.client import from_env
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from vidqa import environment
from vidqa.platforms.docker_problems import (
    DOCKER_DISK_FULL,
    DOCKER_IMAGE_MISSING,
    DOCKER_NAME_TAKEN,
    DOCKER_NO_DAEMON,
    DOCKER_NO_GPU_RUNTIME,
    DOCKER_PATH_MISSING,
    DOCKER_PERMISSION,
    DOCKER_PULL_REFUSED,
    DOCKER_REFUSED,
)
from vidqa.problem import Code, ProblemError

TIMEOUT_S = 60
# What the daemon says, and which problem that is; the first that fits. Some of them are in the status alone.
SAID = (
    (r"no space left on device|disk quota exceeded", DOCKER_DISK_FULL),
    (r"is already in use by container", DOCKER_NAME_TAKEN),
    (r"could not select device driver|nvidia-container|unresolvable CDI devices", DOCKER_NO_GPU_RUNTIME),
    (r"bind source path does not exist", DOCKER_PATH_MISSING),
    (r"access denied|unauthorized|authentication required|no basic auth|denied:", DOCKER_PULL_REFUSED),
    (r"manifest unknown|manifest for .* not found|No such image|name unknown", DOCKER_IMAGE_MISSING),
)
PULLING = re.compile(r"lookup|dial tcp|TLS|certificate|timeout|connection refused|received unexpected HTTP status")


@contextmanager
def daemon() -> Iterator[Any]:
    """The daemon's low-level client. Raises DOCKER_NO_DAEMON or DOCKER_PERMISSION, also when it goes away meanwhile,
    and what it refuses as the problem that it is."""
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
    """Whether the daemon runs on this machine: then what we see is what it sees."""
    return address().startswith(("unix://", "http+unix://"))


def unreachable(failed: BaseException) -> ProblemError:
    if re.search(r"Permission ?denied", str(failed), re.IGNORECASE):
        return DOCKER_PERMISSION.error(address(), "the daemon's socket may not be opened")
    reason = re.sub(r"\s+", " ", str(failed))[:200]
    return DOCKER_NO_DAEMON.error(address(), f"it does not answer: {reason}")


@contextmanager
def refusals(where: object) -> Iterator[None]:
    """What the daemon refuses inside becomes a problem at `where`."""
    try:
        yield
    except APIError as refused:
        raise refusal(where, refused) from refused


def refusal(where: object, refused: APIError) -> ProblemError:
    said = environment.redacted(re.sub(r"\s+", " ", str(refused.explanation or refused)))[:400]
    return _code(said, refused).error(where, f"the daemon says: {said}")


def _code(said: str, refused: APIError) -> Code:
    for pattern, code in SAID:
        if re.search(pattern, said, re.IGNORECASE):
            return code
    if isinstance(refused, ImageNotFound):
        return DOCKER_IMAGE_MISSING
    return DOCKER_PULL_REFUSED if PULLING.search(said) else DOCKER_REFUSED


def image_facts(client: Any, image: str) -> dict[str, Any] | None:
    """What the daemon knows of an image that it has; None where it has not."""
    try:
        return dict(client.inspect_image(image))
    except NotFound:
        return None


def pull(client: Any, image: str) -> None:
    """Fetch an image. Raises DOCKER_IMAGE_MISSING, DOCKER_PULL_REFUSED, DOCKER_DISK_FULL."""
    with refusals(image):
        for line in client.pull(image, stream=True, decode=True):
            if "error" in line:
                raise APIError(str(line["error"]), explanation=str(line["error"]))


def container_facts(client: Any, name: str) -> dict[str, Any] | None:
    """What the daemon knows of a container; None where there is none."""
    try:
        return dict(client.inspect_container(name))
    except NotFound:
        return None


def put_file(client: Any, container: str, folder: str, name: str, value: Any, owner: tuple[int, int]) -> None:
    """Write a JSON file that only `owner` (user and group id) reads into a container that has not started."""
    content = json.dumps(value).encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, (entry.uid, entry.gid) = len(content), 0o400, owner
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    client.put_archive(container, folder, packed.getvalue())


def read_file(client: Any, container: str, path: str) -> bytes | None:
    """A file as the container sees it, through its mounts; None where there is none."""
    try:
        pieces, _ = client.get_archive(container, path)
    except NotFound:
        return None
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        member = archive.next()
        file = archive.extractfile(member) if member else None
        return file.read() if file else None
