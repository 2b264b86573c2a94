"""Files of a gap analysis wherever they are: local paths, or s3:// and other addresses that fsspec knows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vidqa.contract._optional import require
from vidqa.contract.files import replacing
from vidqa.contract.problem import ProblemError
from vidqa.evaluation.gaps.problems import GAPS_RESULTS_MISSING, GAPS_SEVERAL_RESULTS, GAPS_STORAGE
from vidqa.evaluation.other_results import FILE as RESULTS
from vidqa.evaluation.other_results import one_evaluation


def is_remote(path: str) -> bool:
    return "://" in path


def find_results(place: str) -> list[str]:
    """The results.json that `place` means: the file itself, the one directly in it, or the only one below it.

    Several are read together only if each lies in a folder of its own named shard_0, shard-1, rank2, part_3 ... under
    one parent. Raises GAPS_RESULTS_MISSING and GAPS_SEVERAL_RESULTS, which names them.
    """
    with storage_problems(place):
        found = _below(place)
    if not found:
        raise GAPS_RESULTS_MISSING.error(place, f"no {RESULTS} is in this folder or below it")
    if chosen := one_evaluation(place, found):
        return chosen
    listed = ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
    raise GAPS_SEVERAL_RESULTS.error(place, f"{len(found)} results files: {listed}")


def _below(place: str) -> list[str]:
    if not is_remote(place):
        path = Path(place)
        return [place] if path.is_file() else sorted(map(str, path.rglob(RESULTS)))
    files, root = _filesystem(place)
    if files.isfile(root):
        return [place]
    return sorted(files.unstrip_protocol(name) for name in files.find(root) if name.endswith(f"/{RESULTS}"))


def read_bytes(path: str) -> bytes:
    if not is_remote(path):
        return Path(path).read_bytes()
    files, name = _filesystem(path)
    with files.open(name, "rb") as stream:
        return stream.read()


def is_folder(path: str) -> bool:
    if not is_remote(path):
        return os.path.isdir(path)
    files, name = _filesystem(path)
    return bool(files.isdir(name))


def exists(path: str) -> bool:
    if not is_remote(path):
        return os.path.exists(path)
    files, name = _filesystem(path)
    return bool(files.exists(name))


@contextmanager
def publishing(path: str) -> Iterator[Path]:
    """A local path to write to; it becomes `path` when the block ends well, and nothing does when it does not."""
    if not is_remote(path):
        with replacing(Path(path)) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "upload"
        yield temporary
        files, name = _filesystem(path)
        files.put_file(str(temporary), name)


@contextmanager
def storage_problems(where: str) -> Iterator[None]:
    """Turns what file systems and buckets raise into GAPS_STORAGE."""
    try:
        yield
    except OSError as wrong:
        raise GAPS_STORAGE.error(where, str(wrong.strerror or wrong)) from wrong
    except _bucket_errors() as wrong:
        raise GAPS_STORAGE.error(where, str(wrong)) from wrong


def _bucket_errors() -> tuple[type[BaseException], ...]:
    """The errors of botocore that are no OSError: no credentials, no such endpoint."""
    try:
        errors = require("botocore.exceptions", "s3")
    except ProblemError:
        return ()
    return (errors.BotoCoreError, errors.ClientError)


def _filesystem(path: str) -> tuple[Any, str]:
    if path.startswith("s3://"):
        require("s3fs", "s3")
    from fsspec.core import url_to_fs

    try:
        files, name = url_to_fs(path)
    except (ValueError, ImportError) as unknown:  # no such protocol, or one whose package is not installed
        raise GAPS_STORAGE.error(path, str(unknown)) from unknown
    if not name:
        raise GAPS_STORAGE.error(path, "it names no bucket")
    return files, name


def is_same(one: str, other: str) -> bool:
    """Whether two paths are of one file, as far as that can be told without asking a bucket."""
    if is_remote(one) or is_remote(other):
        return one == other
    return os.path.realpath(one) == os.path.realpath(other)
