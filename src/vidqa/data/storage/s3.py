"""Objects in S3 and in servers with its protocol, and the problems for their errors."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from vidqa.core import environment
from vidqa.core._optional import require
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.problems import DENIED, DISK_SPACE, NOT_FOUND, UNREACHABLE

PREFIX = "s3://"
MOST_NAMED = 20  # problems that are listed for one set or run
_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?")
_ENDPOINT = re.compile(r"https?://[\w.:\[\]@-]*[\w\]](/\S*)?")
DENIALS = ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "NoCredentials")
ABSENCES = ("NoSuchKey", "NoSuchBucket", "404")
Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Object:
    """One object: its address, size in bytes, and ETag, which changes with its content."""

    address: str
    size: int
    etag: str


def is_remote(path: str) -> bool:
    return path.startswith(PREFIX)


def parse(address: str) -> str:
    """Check an address, and return it without a slash at its end. Raises STORAGE_NOT_FOUND."""
    if not _ADDRESS.fullmatch(address):
        raise NOT_FOUND.error(address, "it is not of the form s3://bucket/path")
    return address.rstrip("/")


def connect() -> Any:
    """The file system of all buckets. Credentials and region come from the usual AWS variables and files. Raises
    STORAGE_UNREACHABLE for an endpoint that is not a URL."""
    s3fs = require("s3fs", "s3")
    endpoint = environment.s3_endpoint()
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        raise UNREACHABLE.error("AWS_ENDPOINT_URL", f"{environment.redacted(endpoint)!r} is not http(s)://HOST[:PORT]")
    return s3fs.S3FileSystem(
        endpoint_url=endpoint,
        skip_instance_cache=True,
        use_listings_cache=False,
        default_block_size=8 << 20,
    )


def object_at(files: Any, address: str) -> Object | None:
    """The object at exactly this address, if there is one."""
    with errors_at(address):
        try:
            info = files.info(address)
        except FileNotFoundError:
            return None
    return described(info) if info["type"] == "file" else None


def objects_below(files: Any, address: str) -> list[Object]:
    """Every object below an address, sorted by address."""
    with errors_at(address):
        infos = files.find(address, detail=True)
    return sorted((described(info) for info in infos.values() if info["type"] == "file"), key=lambda item: item.address)


def described(info: dict[str, Any]) -> Object:
    """The object for file information of s3fs."""
    return Object(f"{PREFIX}{info['name']}", int(info["size"] or 0), str(info.get("ETag") or "").strip('"'))


def hides_its_hash(files: Any, address: str) -> bool:
    """Whether an object is encrypted with a key of its own: its ETag is then not a hash of its content. Listings do not
    include this, so it takes one request."""
    bucket, _, key = address.removeprefix(PREFIX).partition("/")
    head = files.call_s3("head_object", Bucket=bucket, Key=key)
    return "aws:kms" in str(head.get("ServerSideEncryption") or "") or bool(head.get("SSECustomerAlgorithm"))


def transfers(
    transfer: Callable[[Job], Result], jobs: Iterable[Job], *, at_once: int
) -> Iterator[Result | list[Problem]]:
    """Yield the results of `transfer` for each job, some at once, in their order; of failed jobs the problems."""

    def attempt(job: Job) -> Result | list[Problem]:
        try:
            return transfer(job)
        except ProblemError as failed:
            return failed.problems

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(attempt, jobs)


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Turn errors of a storage and of the disk into problems."""
    botocore = require("botocore.exceptions", "s3")
    try:
        yield
    except FileNotFoundError as absent:
        raise NOT_FOUND.error(where, f"there is no such object: {absent}") from absent
    except PermissionError as denied:
        raise DENIED.error(where, str(denied)) from denied
    except botocore.NoCredentialsError as denied:
        raise DENIED.error(where, "no credentials were found") from denied
    except botocore.ClientError as answer:
        raise _answer(where, answer) from answer
    except (botocore.BotoCoreError, OSError) as failed:
        if isinstance(failed, OSError) and failed.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DISK_SPACE.error(where, str(failed)) from failed
        raise UNREACHABLE.error(where, f"{type(failed).__name__}: {failed}") from failed


def _answer(where: str, answer: Any) -> Exception:
    code = str(answer.response.get("Error", {}).get("Code", ""))
    kind = DENIED if code in DENIALS else NOT_FOUND if code in ABSENCES else UNREACHABLE
    return kind.error(where, str(answer)[:300])
