"""Local and remote files of a gap analysis by fsspec (local paths, s3:// and other URLs), and the gap table."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vidqa.core._optional import require
from vidqa.core.cli import FILE_REFUSED, USAGE
from vidqa.core.files import replacing
from vidqa.core.problem import ProblemError
from vidqa.evaluation.answers import RULES
from vidqa.evaluation.problems import RESULTS_FOLDER
from vidqa.evaluation.results import FILE, one_evaluation
from vidqa.evaluation.text import as_text

# The first three are the original contract. The same columns and types are written when there are no rows.
SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),  # full path
        ("question", pa.string()),
        ("ground_truth", pa.string()),
        ("sample_id", pa.string()),
        ("kind", pa.string()),  # the annotation's own kind of question, else the answer kind
        ("response", pa.string()),  # null if there is none
        ("parsed_response", pa.string()),
        ("parsed_ground_truth", pa.string()),
        ("error_type", pa.string()),  # wrong | truncated | unparsed | empty | missing
        ("match_mode", pa.string()),
        ("source_results", pa.string()),  # the results file; null if the result is missing
        ("row_index", pa.int64()),  # its index in that file, from 0
    ],
    metadata={"vidqa.schema": "vidqa.gaps.v1"},
)
GAP_COLUMNS = tuple(SCHEMA.names)

Row = tuple[Any, ...]  # one value per column, in the order of GAP_COLUMNS


def is_remote(path: str) -> bool:
    return "://" in path


def find_results(place: str) -> list[str]:
    """The results.json of `place`: the file itself, the one directly in it, or the only one below it.

    Several are read together only if each is in a separate folder named shard_0, shard-1, rank2, part_3 ... under one
    parent. Raises RESULTS_FOLDER, which lists them.
    """
    with storage_problems(place):
        files, root = filesystem(place)
        if files.isfile(root):
            paths = [place]
        elif is_remote(place):
            paths = sorted(files.unstrip_protocol(name) for name in files.find(root) if name.endswith(f"/{FILE}"))
        else:
            place, paths = str(Path(place)), sorted(map(str, Path(place).rglob(FILE)))
    if not paths:
        raise RESULTS_FOLDER.error(place, f"no {FILE} is in this folder or below it")
    return one_evaluation(place, paths)


def is_judged(results: str) -> bool:
    """Whether results were judged by the present rules, according to the metrics.json beside them."""
    metrics = f"{results.removesuffix(FILE)}metrics.json"
    with storage_problems(metrics):
        try:
            table = json.loads(read_bytes(metrics)) if results.endswith(FILE) and exists(metrics) else None
        except (ValueError, RecursionError):
            return False
    return isinstance(table, dict) and table.get("answer_rules") == RULES


def read_bytes(path: str) -> bytes:
    files, name = filesystem(path)
    return bytes(files.cat_file(name))


def exists(path: str) -> bool:
    files, name = filesystem(path)
    return bool(files.exists(name))


@contextmanager
def publishing(path: str) -> Iterator[Path]:
    """A local path to write to; it becomes `path` if the block succeeds, and is discarded if it fails."""
    if not is_remote(path):
        with replacing(Path(path)) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "upload"
        yield temporary
        files, name = filesystem(path)
        files.put_file(str(temporary), name)


@contextmanager
def storage_problems(where: str) -> Iterator[None]:
    """Convert the errors of file systems and buckets to ENV_FILE_REFUSED."""
    try:
        yield
    except OSError as wrong:
        remedy = "name a file in a folder" if isinstance(wrong, (IsADirectoryError, NotADirectoryError)) else None
        raise FILE_REFUSED.error(where, str(wrong.strerror or wrong), remedy) from wrong
    except _bucket_errors() as wrong:
        raise FILE_REFUSED.error(where, str(wrong)) from wrong


def _bucket_errors() -> tuple[type[BaseException], ...]:
    """The errors of botocore that are no OSError: no credentials, no such endpoint."""
    try:
        errors = require("botocore.exceptions", "s3")
    except ProblemError:
        return ()
    return (errors.BotoCoreError, errors.ClientError)


def filesystem(path: str) -> tuple[Any, str]:
    """The file system of a path, and its name there. Raises ENV_FILE_REFUSED."""
    if not path:
        raise FILE_REFUSED.error("''", "it is empty, and names no file")
    if path.startswith("s3://"):
        require("s3fs", "s3")
    from fsspec.core import url_to_fs

    try:
        files, name = url_to_fs(path)
    except (ValueError, ImportError) as unknown:  # an unknown protocol, or its package is not installed
        raise FILE_REFUSED.error(path, str(unknown)) from unknown
    if not name:
        raise FILE_REFUSED.error(path, "it names no bucket")
    return files, name


def require_distinct_paths(paths: Iterable[str | Path]) -> None:
    """Raise USAGE if two paths are the same file: an output would replace an input, or another output."""
    places: set[str] = set()
    for path in map(str, paths):
        place = path if is_remote(path) else os.path.realpath(path)
        if place in places:
            raise USAGE.error(path, "it is named twice", "give each output its own name")
        places.add(place)


def write_gaps(rows: Sequence[Row], parquet: str, jsonl: str | None = None) -> None:
    """Write the gap table and, if `jsonl` is given, each row as a JSON line. Raises ENV_FILE_REFUSED."""
    columns = zip(*rows, strict=True) if rows else [() for _ in SCHEMA]
    arrays = [_array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    with storage_problems(parquet), publishing(parquet) as table:
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), table)
        if jsonl:
            with publishing(jsonl) as lines, open(lines, "w", encoding="utf-8") as file:
                named = (dict(zip(GAP_COLUMNS, row, strict=True)) for row in rows)
                file.writelines(as_text(json.dumps(row, ensure_ascii=False)) + "\n" for row in named)


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except UnicodeEncodeError:  # JSON may contain half of a surrogate pair, which cannot be encoded
        return pa.array([None if value is None else as_text(value) for value in values], type=kind)
