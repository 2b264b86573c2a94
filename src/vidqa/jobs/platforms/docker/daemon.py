"""The Docker daemon through its SDK: connecting, and its errors as problems.

Docker itself chooses the daemon: DOCKER_HOST, else the socket of this machine.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docker.client import from_env
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

from vidqa.core import environment
from vidqa.core.problem import Code, ProblemError
from vidqa.jobs.platforms.docker.problems import (
    DOCKER_DISK_FULL,
    DOCKER_IMAGE_MISSING,
    DOCKER_NO_DAEMON,
    DOCKER_NO_GPU_RUNTIME,
    DOCKER_PATH_MISSING,
    DOCKER_PERMISSION,
    DOCKER_PULL_REFUSED,
    DOCKER_REFUSED,
)
from vidqa.jobs.platforms.problems import NAME_TAKEN

TIMEOUT_S = 60
# Patterns of daemon messages and their problems; the first match counts.
Refusals = tuple[tuple[str, Code], ...]
DISK = (r"no space left on device|disk quota exceeded", DOCKER_DISK_FULL)
OF_A_CONTAINER: Refusals = (
    DISK,
    (r"is already in use by container", NAME_TAKEN),
    (r"could not select device driver|nvidia-container|unresolvable CDI devices", DOCKER_NO_GPU_RUNTIME),
    (r"bind source path does not exist", DOCKER_PATH_MISSING),
    (r"No such image", DOCKER_IMAGE_MISSING),
    (r"", DOCKER_REFUSED),
)
OF_A_PULL: Refusals = (
    DISK,
    (r"manifest unknown|manifest for .* not found|name unknown", DOCKER_IMAGE_MISSING),
    (r"", DOCKER_PULL_REFUSED),
)


@contextmanager
def daemon() -> Iterator[Any]:
    """The daemon's low-level client. Raises DOCKER_NO_DAEMON or DOCKER_PERMISSION, also when the connection is lost
    inside, and other errors of the daemon as their problem."""
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
        return DOCKER_PERMISSION.error(address(), "the daemon's socket may not be opened")
    reason = re.sub(r"\s+", " ", str(failed))[:200]
    return DOCKER_NO_DAEMON.error(address(), f"it does not answer: {reason}")


@contextmanager
def refusals(where: object, patterns: Refusals = OF_A_CONTAINER) -> Iterator[None]:
    """Errors of the daemon inside become problems at `where`."""
    try:
        yield
    except APIError as refused:
        raise refusal(where, refused, patterns) from refused


def refusal(where: object, refused: APIError, patterns: Refusals = OF_A_CONTAINER) -> ProblemError:
    message = environment.redacted(re.sub(r"\s+", " ", str(refused.explanation or refused)))[:400]
    code = next(code for pattern, code in patterns if re.search(pattern, message, re.IGNORECASE))
    return code.error(where, f"the daemon says: {message}")


@contextmanager
def unless_over() -> Iterator[None]:
    """Ignores the error that a container is gone or has already changed its state."""
    try:
        yield
    except APIError as refused:
        if refused.status_code not in (404, 409):
            raise


def image_facts(client: Any, image: str) -> dict[str, Any] | None:
    """The facts of an image that the daemon has, else None."""
    try:
        return dict(client.inspect_image(image))
    except NotFound:
        return None


def pull(client: Any, image: str) -> None:
    """Fetch an image. Raises DOCKER_IMAGE_MISSING, DOCKER_PULL_REFUSED, DOCKER_DISK_FULL."""
    with refusals(image, OF_A_PULL):
        for line in client.pull(image, stream=True, decode=True):
            if "error" in line:
                raise APIError(str(line["error"]), explanation=str(line["error"]))


def container_facts(client: Any, name: str) -> dict[str, Any] | None:
    """The facts of a container, None where there is none."""
    try:
        return dict(client.inspect_container(name))
    except NotFound:
        return None


def put_file(client: Any, container: str, path: Path, value: Any, owner: str) -> None:
    """Write a JSON file that only `owner`, "UID:GID", reads into a container that has not started."""
    content = json.dumps(value).encode()
    entry = tarfile.TarInfo(path.name)
    entry.size, entry.mode, (entry.uid, entry.gid) = len(content), 0o400, map(int, owner.split(":"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    client.put_archive(container, str(path.parent), packed.getvalue())


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
