"""Headers of the safetensors files of a model folder: their tensors, and whether the files are complete."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem, ProblemError
from vidqa.families.problems import MODEL_FILE_MISSING

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # bytes; the format's own limit
MAX_AXES = 64  # of a tensor; no library has more
UNREADABLE = (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Weights:
    """Counts of a folder's safetensors files."""

    parameters: int
    bytes: int
    files: int


def weight_bytes(folder: Path) -> Weights:
    """Parameters and bytes of a model folder, from the files' headers; from the index where the files are not here yet.

    Raises MODEL_FILE_MISSING.
    """
    files = weight_files(folder)
    if not files and (folder / INDEX).is_file():
        total = int(_index(folder)["metadata"]["total_size"])
        return Weights(total // 2, total, 0)  # published in bf16
    return Weights(sum(parameters_by_name(folder).values()), sum(path.stat().st_size for path in files), len(files))


def parameters_by_name(folder: Path) -> dict[str, int]:
    """The number of elements of every tensor in the present files. Raises MODEL_FILE_MISSING."""
    headers = [read_header(path) for path in weight_files(folder)]
    return {name: math.prod(tensor["shape"]) for header in headers for name, tensor in header.items()}


def weight_files(folder: Path) -> list[Path]:
    """The present safetensors files of the model."""
    if (folder / INDEX).is_file():
        names = sorted(set(_index(folder)["weight_map"].values()))
    else:
        names = ["model.safetensors", "adapter_model.safetensors"]
    return [folder / name for name in names if (folder / name).is_file()]


def check_weights(folder: Path) -> list[Problem]:
    """Index against files, every file whole, every tensor of the index in the file that should hold it."""
    if not (folder / INDEX).is_file():
        files = weight_files(folder)
        if not files:
            return [MODEL_FILE_MISSING.at(folder, f"there is neither model.safetensors nor {INDEX}")]
        return [problem for path in files for problem in _broken(path, set())]
    try:
        placed: dict[str, set[str]] = {}
        for tensor, name in _index(folder)["weight_map"].items():
            placed.setdefault(name, set()).add(tensor)
    except ProblemError as stopped:
        return stopped.problems
    return [problem for name, tensors in sorted(placed.items()) for problem in _broken(folder / name, tensors)]


def read_header(path: Path) -> dict[str, Any]:
    """Every tensor of a safetensors file: {name: {dtype, shape, data_offsets}}. Raises MODEL_FILE_MISSING."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise MODEL_FILE_MISSING.error(path, f"its header claims {length} bytes")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            _check_tensor(name, tensor)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except UNREADABLE as broken:
        raise MODEL_FILE_MISSING.error(path, f"its header cannot be read: {_reason(broken)}") from broken
    if path.stat().st_size != end:
        raise MODEL_FILE_MISSING.error(path, f"it has {path.stat().st_size} bytes; its header describes {end}")
    return header


def _check_tensor(name: str, tensor: dict[str, Any]) -> None:
    """Raises ValueError (TypeError, KeyError) where this is no description of a tensor."""
    begin, end = tensor["data_offsets"]
    shape = tensor["shape"]
    if not isinstance(tensor["dtype"], str) or not isinstance(shape, list) or len(shape) > MAX_AXES:
        raise ValueError(f"{name[:80]!r} has no type or no shape")
    sizes = (begin, end - begin, *shape)
    if not all(type(size) is int and size >= 0 for size in sizes) or math.prod(shape) > 8 * (end - begin):
        raise ValueError(f"{name[:80]!r} has a shape that its bytes do not have")


def _reason(broken: Exception) -> str:
    return "nested too deeply" if isinstance(broken, RecursionError) else f"{type(broken).__name__}: {broken}"


def _broken(path: Path, tensors: set[str]) -> list[Problem]:
    if not path.is_file():
        return [MODEL_FILE_MISSING.at(path, f"{INDEX} names this file and it is not there")]
    try:
        missing = sorted(tensors - read_header(path).keys())
    except ProblemError as stopped:
        return stopped.problems
    if missing:
        return [MODEL_FILE_MISSING.at(path, f"{len(missing)} tensors of {INDEX} are not in it, first {missing[0]!r}")]
    return []


def _index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(name, str) for name in index["weight_map"].values()):
            raise ValueError("weight_map names what is no file")
        total = index.setdefault("metadata", {}).setdefault("total_size", 0)
        if isinstance(total, bool) or not isinstance(total, (int, float)) or not 0 <= total < math.inf:
            raise ValueError("metadata.total_size is no number of bytes")
        return index
    except UNREADABLE as broken:
        raise MODEL_FILE_MISSING.error(path, f"the index cannot be read: {_reason(broken)}") from broken
