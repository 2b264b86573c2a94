"""Uploads files to a bucket and verifies what is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem, ProblemError
from vidqa.data.problems import DAMAGED
from vidqa.data.storage.s3 import Object, connect, described, errors_at, hides_its_hash, objects_below

AT_ONCE = 4
PART = 64 << 20  # bytes of one part; a file below two parts goes in one piece
MOST_PARTS = 9000  # S3 takes 10,000
BLOCK = 8 << 20


@dataclass(frozen=True)
class Sent:
    path: str
    bytes: int
    sha256: str
    etag: str


def send(address: str, root: Path, paths: Sequence[Path]) -> dict[str, Any]:
    """Store every file below `address` under its path relative to `root`. What is there already, bit by bit, stays.

    Returns {"files": [...], "bytes", "sent"}. Raises ProblemError with every file that did not get there.
    """
    bucket = connect()
    there = {item.address: item for item in objects_below(bucket, address)}
    problems: list[Problem] = []
    done: list[Sent] = []
    count = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for result in pool.map(
            lambda path: _try_one(bucket, f"{address}/{path.relative_to(root)}", path, there), paths
        ):
            if isinstance(result, list):
                problems += result
                continue
            sent, was_sent = result
            done.append(Sent(sent.address.removeprefix(f"{address}/"), sent.size, sent.sha256, sent.etag))
            count += was_sent
    if problems:
        raise ProblemError(problems[:20])
    return {"files": [asdict(item) for item in done], "bytes": sum(item.bytes for item in done), "sent": count}


@dataclass(frozen=True)
class _Stored(Object):
    sha256: str


def _try_one(bucket: Any, address: str, path: Path, there: dict[str, Object]) -> tuple[_Stored, bool] | list[Problem]:
    try:
        return _send_one(bucket, address, path, there.get(address))
    except ProblemError as failed:
        return failed.problems


def _send_one(bucket: Any, address: str, path: Path, there: Object | None) -> tuple[_Stored, bool]:
    """The object as it is stored now, and whether it had to be sent."""
    with errors_at(address):
        size = path.stat().st_size
        part = max(PART, -(-size // MOST_PARTS))
        etag, sha256 = hashes(path, part)
        if there is not None and (there.size, there.etag) == (size, etag):
            return _Stored(address, size, etag, sha256), False
        bucket.put_file(str(path), address, chunksize=part)
        info = bucket.info(address, refresh=True)
    stored = described(info)
    if stored.size != size or (stored.etag != etag and not hides_its_hash(info)):
        message = f"{size} bytes with the tag {etag} were sent, {stored.size} with {stored.etag} are stored"
        raise DAMAGED.error(address, message)
    return _Stored(address, size, stored.etag, sha256), True


def hashes(path: Path, part: int) -> tuple[str, str]:
    """The tag that S3 gives a file sent in parts of this size, and its SHA-256.

    Source: S3's multipart tag is the MD5 of the parts' MD5s, a dash, and their number; of one piece it is the MD5.
    """
    sha256, parts, size = hashlib.sha256(), [], path.stat().st_size
    whole = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while True:
            of_part, left = hashlib.md5(usedforsecurity=False), part
            while left and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                for digest in (sha256, whole, of_part):
                    digest.update(block)
            if left == part:
                break
            parts.append(of_part.digest())
    if size < min(5 << 30, 2 * part):  # where s3fs sends one piece
        return whole.hexdigest(), sha256.hexdigest()
    return f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}", sha256.hexdigest()
